// Weights into the CPU's packed form, piece by piece, so that a loader needs no second copy of a tensor.

#include <pybind11/stl.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "cpu_ops.h"

namespace accel::py_bindings {
namespace {

constexpr const char* kOp = "pack_weight";
// Elements of a weight, its padding included: 2^47 bytes as float32. Keeps every size below within int64.
constexpr int64_t kMaxElements = int64_t{1} << 45;

cpu::WeightFormat parse_format(const std::string& name) {
  static const std::map<std::string, cpu::WeightFormat> formats = {{"float32", cpu::WeightFormat::kF32},
                                                                   {"bfloat16", cpu::WeightFormat::kBF16},
                                                                   {"float16", cpu::WeightFormat::kF16},
                                                                   {"q8", cpu::WeightFormat::kQ8},
                                                                   {"q4", cpu::WeightFormat::kQ4}};
  if (const auto it = formats.find(name); it != formats.end()) return it->second;
  OpArgs(kOp).fail("unknown weight format '" + name + "'; known: float32, bfloat16, float16, q8, q4");
}

struct Encoding {
  cpu::RowEncoding code;
  std::vector<cpu::WeightFormat> targets;  // formats that rows of this encoding may be packed to
};

const Encoding& parse_encoding(const std::string& name) {
  using F = cpu::WeightFormat;
  static const std::map<std::string, Encoding> encodings = {
      {"float32", {cpu::RowEncoding::kF32, {F::kF32, F::kBF16, F::kF16}}},
      {"bfloat16", {cpu::RowEncoding::kBF16, {F::kF32, F::kBF16, F::kF16}}},
      {"float16", {cpu::RowEncoding::kF16, {F::kF32, F::kBF16, F::kF16}}},
      {"Q4_0", {cpu::RowEncoding::kQ4_0, {F::kQ4}}},
      {"Q4_1", {cpu::RowEncoding::kQ4_1, {F::kQ4}}},
      {"Q8_0", {cpu::RowEncoding::kQ8_0, {F::kQ8}}}};
  if (const auto it = encodings.find(name); it != encodings.end()) return it->second;
  OpArgs(kOp).fail("rows of encoding '" + name + "' cannot be packed; dequantise them to float32 first");
}

const char* format_name(cpu::WeightFormat format) {
  switch (format) {
    case cpu::WeightFormat::kF32:
      return "float32";
    case cpu::WeightFormat::kBF16:
      return "bfloat16";
    case cpu::WeightFormat::kF16:
      return "float16";
    case cpu::WeightFormat::kQ8:
      return "q8";
    case cpu::WeightFormat::kQ4:
      return "q4";
  }
  return "?";
}

size_t packed_bytes(const std::string& format_text, int64_t n, int64_t k) {
  const OpArgs args(kOp);
  const cpu::WeightFormat format = parse_format(format_text);
  if (n < 1 || k < 1) args.fail("a weight of " + std::to_string(n) + " x " + std::to_string(k) + "; both must be 1 or more");
  const bool quantised = format == cpu::WeightFormat::kQ8 || format == cpu::WeightFormat::kQ4;
  if (quantised && k % cpu::kQuantBlock != 0) {
    args.fail("input features " + std::to_string(k) + " are no multiple of " + std::to_string(cpu::kQuantBlock) + ", which " +
              format_text + " needs");
  }
  if (n > kMaxElements || k > kMaxElements / ((n + cpu::kPanel - 1) / cpu::kPanel * cpu::kPanel)) {
    args.fail("a weight of " + std::to_string(n) + " x " + std::to_string(k) + "; the limit is " +
              std::to_string(kMaxElements) + " elements, with " + std::to_string(n) + " rounded up to a multiple of " +
              std::to_string(cpu::kPanel));
  }
  return cpu::packed_bytes(format, n, k);
}

}  // namespace

std::unique_ptr<Packed> wrap_packed(const py::object& storage, const std::string& format, int64_t n, int64_t k) {
  const OpArgs args(kOp);
  const Tensor t = args.out(storage, "storage", {kUInt8}, 1, 1);
  const size_t bytes = packed_bytes(format, n, k);
  args.dim(t, "storage", 0, static_cast<int64_t>(bytes), "bytes of the packed weight");
  args.contiguous(t, "storage");
  return std::unique_ptr<Packed>(
      new Packed{{parse_format(format), n, k, t.data}, bytes, storage, std::make_shared<std::mutex>()});
}

namespace {

// Rows [count, row_bytes] of uint8 as output features targets[i], or first + i.
void pack_rows(Packed& p, const std::string& encoding_text, py::handle rows_object,
               const std::optional<py::object>& targets_object, int64_t first) {
  const OpArgs args(kOp);
  const Encoding& encoding = parse_encoding(encoding_text);
  const cpu::PackedWeight& w = p.weight;
  if (std::find(encoding.targets.begin(), encoding.targets.end(), w.format) == encoding.targets.end()) {
    args.fail("rows of " + encoding_text + " cannot be packed to " + format_name(w.format) +
              "; dequantise them to float32 first");
  }
  const Tensor rows = args.in(rows_object, "rows", {kUInt8}, 2, 2);
  args.contiguous(rows, "rows");
  args.dim(rows, "rows", 1, static_cast<int64_t>(cpu::row_bytes(encoding.code, w.k)), "bytes of a row");
  const int64_t count = rows.shape[0];
  const int64_t* targets = nullptr;
  if (targets_object && !targets_object->is_none()) {
    const Tensor t = args.in(*targets_object, "targets", {kInt64}, 1, 1);
    args.dim(t, "targets", 0, count, "rows");
    args.contiguous(t, "targets");
    args.range(t.as<int64_t>(), count, "targets", 0, w.n, "the weight");
    targets = t.as<int64_t>();
  } else if (first < 0 || count > w.n || first > w.n - count) {
    args.fail(std::to_string(count) + " rows from row " + std::to_string(first) + " leave the weight of " +
              std::to_string(w.n));
  }
  py::gil_scoped_release released;
  const std::lock_guard<std::mutex> lock(*p.packing);
  if (!cpu::pack_rows(w.format, w.n, w.k, const_cast<void*>(w.data), encoding.code, rows.data, count, targets, first)) {
    args.fail("a scale of " + encoding_text + " is too large to be held as " + format_name(w.format) +
              "; hold the weights as float32 (dtype)");
  }
}

}  // namespace

void bind_packing(py::module_& module) {
  py::class_<Packed>(module, "PackedWeight", "A weight [out, in] in the CPU's packed form.", py::module_local())
      .def_property_readonly("shape", [](const Packed& p) { return py::make_tuple(p.weight.n, p.weight.k); })
      .def_property_readonly("format", [](const Packed& p) { return format_name(p.weight.format); })
      .def_property_readonly("nbytes", [](const Packed& p) { return p.bytes; })
      .def("pack_rows", &pack_rows, py::arg("encoding"), py::arg("rows"), py::arg("targets") = py::none(), py::arg("first") = 0,
           "Place rows (uint8 [count, row_bytes] of `encoding`) as output features `targets[i]` (int64), or first + i.");
  module.def("packed_bytes", &packed_bytes, py::arg("format"), py::arg("n"), py::arg("k"),
             "Bytes of a packed weight [n, k], padding included.");
  module.def("wrap_packed", &wrap_packed, py::arg("storage"), py::arg("format"), py::arg("n"), py::arg("k"),
             "A PackedWeight over `storage` (uint8, packed_bytes long), which must have been zeroed.");
}

}  // namespace accel::py_bindings
