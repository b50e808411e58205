// norm, rotary, activation, linear, embedding, gather of rows.

#include <pybind11/stl.h>

#include "cpu_ops.h"

namespace accel::py_bindings {
namespace {

// Same number of dimensions and the same shape.
void same_shape(const OpArgs& args, const Tensor& a, const char* a_name, const Tensor& b, const char* b_name) {
  bool same = a.ndim == b.ndim;
  for (int32_t i = 0; same && i < a.ndim; ++i) same = a.shape[i] == b.shape[i];
  if (!same)
    args.fail(std::string(a_name) + " has shape " + a.shape_text() + " and " + b_name + " " + b.shape_text() +
              "; they must agree");
}

float checked_eps(const OpArgs& args, double eps) {
  if (!(eps >= 0)) args.fail("eps is " + std::to_string(eps) + "; it must be 0 or more");
  return static_cast<float>(eps);
}

Tensor norm_weight(const OpArgs& args, py::handle object, int64_t width) {
  const Tensor weight = args.in(object, "weight", {kFloat32}, 1, 1);
  args.dim(weight, "weight", 0, width, "the last dimension of x");
  args.contiguous(weight, "weight");
  return weight;
}

void rms_norm(CpuOps& ops, StreamHandle& stream, py::handle out_object, py::handle x_object, py::handle weight_object,
              double eps_value) {
  const OpArgs args("rms_norm");
  const Tensor out = args.out(out_object, "out", {kFloat32}, 2, 3), x = args.in(x_object, "x", {kFloat32}, 2, 3);
  same_shape(args, out, "out", x, "x");
  const Tensor weight = norm_weight(args, weight_object, x.shape[x.ndim - 1]);
  const float eps = checked_eps(args, eps_value);
  const cpu::Rows o = rows(args, out, "out");
  const cpu::ConstRows in = const_rows(args, x, "x");
  Accesses accesses(args, stream.device->runtime, Accesses::Alias::kSameElements);
  accesses.add("out", out, ACCEL_WRITE);
  accesses.add("x", x, ACCEL_READ);
  accesses.add("weight", weight, ACCEL_READ);
  launch_compute(
      stream, args.op(), accesses.data(), accesses.size(),
      [&pool = *ops.pool, kernel = ops.table->rms_norm, o, in, w = weight.as<float>(), eps] { kernel(pool, o, in, w, eps); });
}

void add_rms_norm(CpuOps& ops, StreamHandle& stream, py::handle out_object, py::handle residual_object, py::handle x_object,
                  py::handle weight_object, double eps_value) {
  const OpArgs args("add_rms_norm");
  const Tensor out = args.out(out_object, "out", {kFloat32}, 2, 2),
               residual = args.out(residual_object, "residual", {kFloat32}, 2, 2);
  const Tensor x = args.in(x_object, "x", {kFloat32}, 2, 2);
  same_shape(args, out, "out", x, "x");
  same_shape(args, residual, "residual", x, "x");
  const Tensor weight = norm_weight(args, weight_object, x.shape[1]);
  const float eps = checked_eps(args, eps_value);
  const cpu::Rows o = rows(args, out, "out"), r = rows(args, residual, "residual");
  const cpu::ConstRows in = const_rows(args, x, "x");
  Accesses accesses(args, stream.device->runtime, Accesses::Alias::kSameElements);
  accesses.add("out", out, ACCEL_WRITE);
  accesses.add("residual", residual, ACCEL_READ_WRITE);
  accesses.add("x", x, ACCEL_READ);
  accesses.add("weight", weight, ACCEL_READ);
  launch_compute(stream, args.op(), accesses.data(), accesses.size(),
                 [&pool = *ops.pool, kernel = ops.table->add_rms_norm, o, r, in, w = weight.as<float>(), eps] {
                   kernel(pool, o, r, in, w, eps);
                 });
}

void rotary(CpuOps& ops, StreamHandle& stream, py::handle x_object, py::handle positions_object, py::handle table_object,
            bool interleaved) {
  const OpArgs args("rotary");
  const Tensor x = args.out(x_object, "x", {kFloat32}, 3, 3),
               positions = args.in(positions_object, "positions", {kInt32}, 1, 1);
  const Tensor table = args.in(table_object, "table", {kFloat32}, 2, 2);
  args.dim(positions, "positions", 0, x.shape[0], "tokens of x");
  args.contiguous(positions, "positions");
  args.contiguous(table, "table");
  const int64_t width = table.shape[1];
  if (width % 2 != 0 || width > x.shape[2]) {
    args.fail("table has " + std::to_string(width) + " columns; it must be even and at most head_dim " +
              std::to_string(x.shape[2]));
  }
  args.range(positions.as<int32_t>(), x.shape[0], "positions", 0, table.shape[0], "the range of table");
  const cpu::Rows in = rows(args, x, "x");
  Accesses accesses(args, stream.device->runtime);
  accesses.add("x", x, ACCEL_READ_WRITE);
  accesses.add("positions", positions, ACCEL_READ);
  accesses.add("table", table, ACCEL_READ);
  launch_compute(stream, args.op(), accesses.data(), accesses.size(),
                 [&pool = *ops.pool, kernel = ops.table->rotary, in, p = positions.as<int32_t>(), t = table.as<float>(), width,
                  interleaved] { kernel(pool, in, p, t, width, interleaved); });
}

void silu_and_mul(CpuOps& ops, StreamHandle& stream, py::handle out_object, py::handle x_object) {
  const OpArgs args("silu_and_mul");
  const Tensor out = args.out(out_object, "out", {kFloat32}, 2, 2), x = args.in(x_object, "x", {kFloat32}, 2, 2);
  args.dim(out, "out", 0, x.shape[0], "rows of x");
  args.dim(x, "x", 1, 2 * out.shape[1], "twice the width of out");
  const cpu::Rows o = rows(args, out, "out");
  const cpu::ConstRows in = const_rows(args, x, "x");
  Accesses accesses(args, stream.device->runtime);
  accesses.add("out", out, ACCEL_WRITE);
  accesses.add("x", x, ACCEL_READ);
  launch_compute(stream, args.op(), accesses.data(), accesses.size(),
                 [&pool = *ops.pool, kernel = ops.table->silu_and_mul, o, in] { kernel(pool, o, in); });
}

// The packed weight as a tensor of bytes, for its access.
Tensor weight_bytes(const Packed& p) {
  Tensor t;
  t.data = static_cast<std::byte*>(const_cast<void*>(p.weight.data));
  t.dtype = kUInt8;
  t.ndim = 1;
  t.shape[0] = static_cast<int64_t>(p.bytes);
  t.strides[0] = 1;
  return t;
}

void linear(CpuOps& ops, StreamHandle& stream, py::handle out_object, py::handle x_object, py::handle weight_object,
            const py::object& bias_object) {
  const OpArgs args("linear");
  const Tensor out = args.out(out_object, "out", {kFloat32}, 2, 2), x = args.in(x_object, "x", {kFloat32}, 2, 2);
  const Packed& weight = packed(args, weight_object, "weight");
  args.dim(out, "out", 0, x.shape[0], "rows of x");
  args.dim(out, "out", 1, weight.weight.n, "output features of weight");
  args.dim(x, "x", 1, weight.weight.k, "input features of weight");
  Accesses accesses(args, stream.device->runtime);
  const float* bias = nullptr;
  if (!bias_object.is_none()) {
    const Tensor b = args.in(bias_object, "bias", {kFloat32}, 1, 1);
    args.dim(b, "bias", 0, weight.weight.n, "output features of weight");
    args.contiguous(b, "bias");
    accesses.add("bias", b, ACCEL_READ);
    bias = b.as<float>();
  }
  const cpu::Rows o = rows(args, out, "out");
  const cpu::ConstRows in = const_rows(args, x, "x");
  accesses.add("out", out, ACCEL_WRITE);
  accesses.add("x", x, ACCEL_READ);
  accesses.add("weight", weight_bytes(weight), ACCEL_READ);
  launch_compute(
      stream, args.op(), accesses.data(), accesses.size(),
      [&pool = *ops.pool, kernel = ops.table->linear, o, in, w = weight.weight, bias] { kernel(pool, o, in, w, bias); });
}

void embedding(CpuOps& ops, StreamHandle& stream, py::handle out_object, py::handle ids_object, py::handle weight_object) {
  const OpArgs args("embedding");
  const Tensor out = args.out(out_object, "out", {kFloat32}, 2, 2), ids = args.in(ids_object, "ids", {kInt32}, 1, 1);
  const Packed& weight = packed(args, weight_object, "weight");
  args.dim(out, "out", 0, ids.shape[0], "number of ids");
  args.dim(out, "out", 1, weight.weight.k, "width of weight");
  args.contiguous(ids, "ids");
  args.range(ids.as<int32_t>(), ids.shape[0], "ids", 0, weight.weight.n, "the vocabulary");
  const cpu::Rows o = rows(args, out, "out");
  Accesses accesses(args, stream.device->runtime);
  accesses.add("out", out, ACCEL_WRITE);
  accesses.add("ids", ids, ACCEL_READ);
  accesses.add("weight", weight_bytes(weight), ACCEL_READ);
  launch_compute(stream, args.op(), accesses.data(), accesses.size(),
                 [&pool = *ops.pool, kernel = ops.table->embedding, o, i = ids.as<int32_t>(), w = weight.weight] {
                   kernel(pool, o, i, w);
                 });
}

void gather_rows(CpuOps& ops, StreamHandle& stream, py::handle out_object, py::handle x_object, py::handle index_object) {
  const OpArgs args("gather_rows");
  const Tensor out = args.out(out_object, "out", {kFloat32}, 2, 2), x = args.in(x_object, "x", {kFloat32}, 2, 2);
  const Tensor index = args.in(index_object, "index", {kInt32}, 1, 1);
  args.dim(out, "out", 0, index.shape[0], "number of indices");
  args.dim(out, "out", 1, x.shape[1], "width of x");
  args.contiguous(index, "index");
  args.range(index.as<int32_t>(), index.shape[0], "index", 0, x.shape[0], "rows of x");
  const cpu::Rows o = rows(args, out, "out");
  const cpu::ConstRows in = const_rows(args, x, "x");
  Accesses accesses(args, stream.device->runtime);
  accesses.add("out", out, ACCEL_WRITE);
  accesses.add("x", x, ACCEL_READ);
  accesses.add("index", index, ACCEL_READ);
  launch_compute(
      stream, args.op(), accesses.data(), accesses.size(),
      [&pool = *ops.pool, kernel = ops.table->gather_rows, o, in, i = index.as<int32_t>()] { kernel(pool, o, in, i); });
}

}  // namespace

void bind_compute_ops(OpsClass& cls) {
  cls.def("rms_norm", &rms_norm, py::arg("stream"), py::arg("out"), py::arg("x"), py::arg("weight"), py::kw_only(),
          py::arg("eps"));
  cls.def("add_rms_norm", &add_rms_norm, py::arg("stream"), py::arg("out"), py::arg("residual"), py::arg("x"),
          py::arg("weight"), py::kw_only(), py::arg("eps"));
  cls.def("rotary", &rotary, py::arg("stream"), py::arg("x"), py::arg("positions"), py::arg("table"), py::kw_only(),
          py::arg("interleaved") = false);
  cls.def("silu_and_mul", &silu_and_mul, py::arg("stream"), py::arg("out"), py::arg("x"));
  cls.def("linear", &linear, py::arg("stream"), py::arg("out"), py::arg("x"), py::arg("weight"), py::arg("bias") = py::none());
  cls.def("embedding", &embedding, py::arg("stream"), py::arg("out"), py::arg("ids"), py::arg("weight"));
  cls.def("gather_rows", &gather_rows, py::arg("stream"), py::arg("out"), py::arg("x"), py::arg("index"));
}

}  // namespace accel::py_bindings
