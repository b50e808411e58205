// How an op of this module is being called. On a device that runs work on the caller's thread an op is checked and run in one
// call. On one that queues it, and whose memory the host cannot read, the same function is called twice:
//
//   kDirect   check all, launch
//   kCheck    at submission: shapes, dtypes and liveness; values that lie in device memory cannot be looked at yet
//   kRun      in stream order, on the stream's thread: everything again with the addresses that work may use, then the kernel
//
// Invariant: what kRun refuses becomes the stream's error and names the op; nothing of it has been written then.
#pragma once

#include "accel/runtime.h"

namespace accel::py_bindings {

enum class OpPhase { kDirect, kCheck, kRun };

struct OpContext {
  OpPhase phase = OpPhase::kDirect;
  const AccelRuntime* runtime = nullptr;
  AccelDevice* device = nullptr;
  void (*note)(const AccelAccess* accesses, size_t count) = nullptr;  // tells the runtime what the running work touches
};

// Of this module and thread.
inline thread_local OpContext g_op;

// Sets the context for a scope.
class OpScope {
 public:
  explicit OpScope(const OpContext& context) : before_(g_op) { g_op = context; }
  OpScope(const OpScope&) = delete;
  OpScope& operator=(const OpScope&) = delete;
  ~OpScope() { g_op = before_; }

 private:
  OpContext before_;
};

}  // namespace accel::py_bindings
