// The CPU's op set as Python sees it: checks arguments, declares accesses, launches a kernel.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <mutex>
#include <string>

#include "../cpu/kernels.h"
#include "../cpu/thread_pool.h"
#include "handles.h"
#include "op_args.h"

namespace accel::py_bindings {

// A weight in the CPU's packed form (csrc/cpu/kernels.h) inside memory that somebody else owns.
struct Packed {
  cpu::PackedWeight weight;
  size_t bytes;
  py::object owner;
  std::shared_ptr<std::mutex> packing;  // held while rows are placed: rows of one panel share bytes
};

// Everything an op needs besides its arguments.
struct CpuOps {
  // Shared with work that is queued on a copy stream, which may outlive the device object.
  std::shared_ptr<cpu::ThreadPool> pool;
  const cpu::KernelTable* table;

  CpuOps(int threads, const std::string& isa);
};

// A view of one layer of the KV pool, [blocks, 2, kv_heads, block_size, head_dim].
cpu::KvLayer kv_layer(const OpArgs& args, const Tensor& kv);
// The same for a row tensor [rows, dim] or [rows, heads, dim].
cpu::Rows rows(const OpArgs& args, const Tensor& t, const char* name);
cpu::ConstRows const_rows(const OpArgs& args, const Tensor& t, const char* name);

// A contiguous vector argument of `length` elements, which is called `what` in messages.
Tensor vector_in(const OpArgs& args, py::handle object, const char* name, DataType type, int64_t length, const char* what);
Tensor vector_out(const OpArgs& args, py::handle object, const char* name, DataType type, int64_t length, const char* what);

std::unique_ptr<Packed> wrap_packed(const py::object& storage, const std::string& format, int64_t n, int64_t k);
const Packed& packed(const OpArgs& args, py::handle object, const char* name);

using OpsClass = py::class_<CpuOps>;
void bind_ops(py::module_& module);      // all of them, and the weights; the classes are local to the module
void bind_compute_ops(OpsClass& cls);    // cpu_compute_ops.cc: norm, rotary, activation, linear, embedding, gather_rows
void bind_attention_ops(OpsClass& cls);  // cpu_attention_ops.cc: write_kv, attention
void bind_logits_ops(OpsClass& cls);     // cpu_logits_ops.cc: rules on logits, sampling, log probabilities
void bind_step_ops(OpsClass& cls);       // cpu_step_ops.cc
void bind_page_ops(OpsClass& cls);       // cpu_page_ops.cc
void bind_packing(py::module_& module);  // cpu_packing.cc

}  // namespace accel::py_bindings
