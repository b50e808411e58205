// Checks of op arguments, shared by the native modules: each failure is InvalidArgument and names op, argument, value and
// limit.
//
// Invariant: everything is checked before anything is launched.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "accel/error.h"
#include "accel/runtime.h"
#include "accel/tensor.h"
#include "op_phase.h"
#include "view.h"

namespace accel::py_bindings {

// Token ids, positions and lengths are int32.
inline constexpr int64_t kMostInt32 = 0x7fffffff;

// One argument while it is checked: `OpArgs args("rms_norm"); Tensor x = args.in(handle, "x", {kFloat32}, 2, 3);`
class OpArgs {
 public:
  explicit OpArgs(const char* op) : op_(op) {}
  const char* op() const { return op_; }

  Tensor in(py::handle object, const char* name, std::initializer_list<DataType> types, int min_dims, int max_dims) const;
  Tensor out(py::handle object, const char* name, std::initializer_list<DataType> types, int min_dims, int max_dims) const;

  // A vector of int32 that the op copies at once, so that it may lie in host memory on any device; `data` is null where it
  // lies on the device and cannot be looked at yet.
  Tensor ids(py::handle object, const char* name) const;

  // Dimension `dim` of `t` must be `wanted`, which is called `what` in the message.
  void dim(const Tensor& t, const char* name, int dim, int64_t wanted, const char* what) const;
  void at_most(int64_t value, const char* what, int64_t limit) const {
    if (value > limit) fail(std::string(what) + " is " + std::to_string(value) + "; the limit is " + std::to_string(limit));
  }
  void contiguous(const Tensor& t, const char* name) const;
  // Whether the elements of tensors can be looked at: not while an op is being queued on a device of its own memory.
  bool sees_values() const { return g_op.phase != OpPhase::kCheck; }
  void last_contiguous(const Tensor& t, const char* name) const;
  // All of `values[0..count)` must lie in [low, high).
  template <typename T>
  void range(const T* values, int64_t count, const char* name, int64_t low, int64_t high, const char* limit) const {
    if (!sees_values()) return;
    for (int64_t i = 0; i < count; ++i) {
      if (values[i] < low || values[i] >= high) {
        fail(std::string(name) + "[" + std::to_string(i) + "] is " + std::to_string(values[i]) + "; " + limit + " is [" +
             std::to_string(low) + ", " + std::to_string(high) + ")");
      }
    }
  }
  [[noreturn]] void fail(const std::string& message) const { throw Error(ErrorKind::kInvalidArgument, message, op_); }

 private:
  void locate(Tensor& t, const char* name) const;
  const char* op_;
};

// What a launch reads and writes: refuses arguments that overlap where one is written, and builds the declared accesses when
// the runtime looks at them.
class Accesses {
 public:
  // What an output may share with an input: nothing, or exactly its elements (an op that reads each before it writes it).
  enum class Alias { kNone, kSameElements };

  Accesses(const OpArgs& args, const AccelRuntime* runtime, Alias alias = Alias::kNone)
      : args_(args), alias_(alias), wanted_(runtime->tracks_accesses != 0 && args.sees_values()) {}
  bool wanted() const { return wanted_; }
  // The whole of `t`. Throws InvalidArgument when it overlaps an argument added before and either is written.
  void add(const char* name, const Tensor& t, AccelAccessMode mode);
  // The same check without a declaration, for a pool whose pages are declared by add_indexed.
  void check(const char* name, const Tensor& t, AccelAccessMode mode);
  // `count` ranges of `bytes` at base + index[i] * stride; `index` is kept here until the launch.
  void add_indexed(void* base, size_t bytes, int64_t stride, std::vector<int32_t> index, AccelAccessMode mode);
  const AccelAccess* data() const { return list_.data(); }
  size_t size() const { return list_.size(); }

 private:
  struct Argument {
    const char* name;
    Tensor tensor;
    AccelAccessMode mode;
  };
  const OpArgs& args_;
  Alias alias_;
  bool wanted_;
  std::vector<Argument> seen_;
  std::vector<AccelAccess> list_;
  std::vector<std::vector<int32_t>> indices_;
};

}  // namespace accel::py_bindings
