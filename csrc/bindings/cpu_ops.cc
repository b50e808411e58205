// What the modules that run the CPU kernels share: their op set, and helpers of its bindings.

#include "cpu_ops.h"

#include <pybind11/stl.h>

#include <string>

namespace accel::py_bindings {
namespace {

cpu::Isa parse_isa(const std::string& name) {
  if (name == "auto") return cpu::detect_isa();
  for (const cpu::Isa isa : {cpu::Isa::kGeneric, cpu::Isa::kAvx2, cpu::Isa::kAvx512}) {
    if (name == cpu::isa_name(isa)) return isa;
  }
  throw Error(ErrorKind::kInvalidArgument, "unknown instruction set '" + name + "'; known: auto, generic, avx2, avx512");
}

}  // namespace

CpuOps::CpuOps(int threads, const std::string& isa) {
  constexpr int kMostThreads = 1024;
  if (threads < 0 || threads > kMostThreads) {
    throw Error(ErrorKind::kInvalidArgument,
                "threads is " + std::to_string(threads) + "; it must be 0 (automatic) to " + std::to_string(kMostThreads));
  }
  table = cpu::kernels(parse_isa(isa));
  if (!table) {
    throw Error(ErrorKind::kUnsupported, "this machine or build has no " + isa + " kernels", "",
                std::string("the best available is ") + cpu::isa_name(cpu::detect_isa()));
  }
  pool = std::make_shared<cpu::ThreadPool>(threads);
}

cpu::KvLayer kv_layer(const OpArgs& args, const Tensor& kv) {
  if (kv.shape[1] != 2)
    args.fail("kv has shape " + kv.shape_text() + "; it must be [blocks, 2, kv_heads, block_size, head_dim]");
  for (const int dim : {2, 3, 4}) {
    if (kv.shape[dim] < 1)
      args.fail("kv has shape " + kv.shape_text() + "; kv_heads, block_size and head_dim must be 1 or more");
  }
  if (kv.numel() > 0 && !(kv.contiguous(3))) args.fail("kv must be contiguous in a head's [block_size, head_dim]");
  const cpu::Elem elem = kv.dtype == kFloat32 ? cpu::Elem::kF32 : kv.dtype == kBFloat16 ? cpu::Elem::kBF16 : cpu::Elem::kF16;
  return {kv.data, elem, kv.shape[0], kv.shape[2], kv.shape[3], kv.shape[4], kv.strides[0], kv.strides[1], kv.strides[2]};
}

cpu::Rows rows(const OpArgs& args, const Tensor& t, const char* name) {
  args.last_contiguous(t, name);
  if (t.ndim == 2) return {t.as<float>(), t.shape[0], 1, t.shape[1], t.strides[0], t.shape[1]};
  return {t.as<float>(), t.shape[0], t.shape[1], t.shape[2], t.strides[0], t.strides[1]};
}

cpu::ConstRows const_rows(const OpArgs& args, const Tensor& t, const char* name) {
  const cpu::Rows r = rows(args, t, name);
  return {r.data, r.rows, r.heads, r.dim, r.row_stride, r.head_stride};
}

Tensor vector_in(const OpArgs& args, py::handle object, const char* name, DataType type, int64_t length, const char* what) {
  const Tensor t = args.in(object, name, {type}, 1, 1);
  args.dim(t, name, 0, length, what);
  args.contiguous(t, name);
  return t;
}
Tensor vector_out(const OpArgs& args, py::handle object, const char* name, DataType type, int64_t length, const char* what) {
  const Tensor t = args.out(object, name, {type}, 1, 1);
  args.dim(t, name, 0, length, what);
  args.contiguous(t, name);
  return t;
}

const Packed& packed(const OpArgs& args, py::handle object, const char* name) {
  if (!py::isinstance<Packed>(object)) {
    args.fail(std::string(name) + " is a " + Py_TYPE(object.ptr())->tp_name +
              "; a PackedWeight is needed (Device.pack_weight)");
  }
  return object.cast<const Packed&>();
}

void bind_ops(py::module_& module) {
  OpsClass ops(module, "Ops", "Implementation of every op by the CPU kernels: ops.name(stream, *tensors, **attributes).",
               py::module_local());
  ops.def(py::init<int, const std::string&>(), py::kw_only(), py::arg("threads") = 0, py::arg("isa") = "auto")
      .def_property_readonly("isa", [](const CpuOps& o) { return std::string(o.table->isa); })
      .def_property_readonly("threads", [](const CpuOps& o) { return o.pool->threads(); });
  bind_compute_ops(ops);
  bind_attention_ops(ops);
  bind_logits_ops(ops);
  bind_step_ops(ops);
  bind_page_ops(ops);
  bind_packing(module);
}

}  // namespace accel::py_bindings
