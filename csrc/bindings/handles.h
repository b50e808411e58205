// C++ handles over a runtime table: what the Python classes Device, Stream, Event and Gate hold.
//
// Invariant: a handle keeps the device's state alive but not the device open. Every call goes through Use, which refuses a
// closed device and holds off closing while the call runs.
#pragma once

#include <pybind11/pybind11.h>

#include <atomic>
#include <cstdio>
#include <exception>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <type_traits>
#include <utility>

#include "accel/error.h"
#include "accel/runtime.h"
#include "gil.h"
#include "op_phase.h"

namespace accel::py_bindings {

inline ErrorKind kind_of(AccelStatus status) {
  switch (status) {
    case ACCEL_INVALID_ARGUMENT:
      return ErrorKind::kInvalidArgument;
    case ACCEL_OUT_OF_MEMORY:
      return ErrorKind::kOutOfMemory;
    case ACCEL_TIMEOUT:
      return ErrorKind::kTimeout;
    case ACCEL_ASYNC_FAILURE:
      return ErrorKind::kAsyncFailure;
    case ACCEL_DEVICE_LOST:
      return ErrorKind::kDeviceLost;
    case ACCEL_UNSUPPORTED:
      return ErrorKind::kUnsupported;
    case ACCEL_OK:
    case ACCEL_NOT_READY:
    case ACCEL_INTERNAL:
      break;
  }
  return ErrorKind::kInternal;
}

struct DeviceState {
  const AccelRuntime* runtime = nullptr;
  AccelDevice* device = nullptr;
  std::string name;
  std::atomic<bool> closed{false};
  std::shared_mutex closing;
};

using DevicePtr = std::shared_ptr<DeviceState>;

class Use {
 public:
  explicit Use(DeviceState& state) : lock_(state.closing) {
    if (state.closed) throw Error(ErrorKind::kDeviceLost, state.name + " was closed", "", "open it again");
  }

 private:
  std::shared_lock<std::shared_mutex> lock_;
};

inline void check(const DeviceState& state, AccelStatus status, const char* op) {
  if (status == ACCEL_OK) return;
  const std::string message = state.runtime->last_error();
  if (status == ACCEL_ASYNC_FAILURE) {  // "op: what happened": the op that failed, not the call that found out
    if (const size_t end = message.find(": "); end != std::string::npos) {
      throw Error(ErrorKind::kAsyncFailure, message.substr(end + 2), message.substr(0, end));
    }
  }
  throw Error(kind_of(status), message, op);
}

struct StreamHandle {
  DevicePtr device;
  AccelStream* stream = nullptr;
  bool owned = false;
  bool runs_inline = false;

  StreamHandle(DevicePtr d, AccelStream* s, bool own)
      : device(std::move(d)), stream(s), owned(own), runs_inline(device->runtime->stream_is_inline(s) != 0) {}
  StreamHandle(const StreamHandle&) = delete;
  StreamHandle& operator=(const StreamHandle&) = delete;
  ~StreamHandle() {
    std::shared_lock<std::shared_mutex> lock(device->closing);
    if (owned && !device->closed) device->runtime->stream_destroy(stream);
  }
};

struct EventHandle {
  DevicePtr device;
  AccelEvent* event;
  EventHandle(DevicePtr d, AccelEvent* e) : device(std::move(d)), event(e) {}
  EventHandle(const EventHandle&) = delete;
  EventHandle& operator=(const EventHandle&) = delete;
  ~EventHandle() { device->runtime->event_destroy(event); }
};

struct GateHandle {
  DevicePtr device;
  AccelGate* gate;
  GateHandle(DevicePtr d, AccelGate* g) : device(std::move(d)), gate(g) {}
  GateHandle(const GateHandle&) = delete;
  GateHandle& operator=(const GateHandle&) = delete;
  ~GateHandle() { device->runtime->gate_destroy(gate); }
};

// Launches `body` (a callable without arguments) on the stream, without the GIL: another thread may have to run Python before
// an event that the stream waits for completes. Where the stream runs inline the closure stays
// on the stack; elsewhere it is moved to the heap and released after it ran.
template <typename Body>
void launch(StreamHandle& handle, const char* op, const AccelAccess* accesses, size_t num_accesses, Body&& body) {
  if (g_op.phase == OpPhase::kCheck) return;
  if (g_op.phase == OpPhase::kRun) {  // the launch is the work that runs now
    const GilRelease running;
    g_op.note(accesses, num_accesses);
    body();
    return;
  }
  // A closure and how it failed. Nothing may be thrown through the C table, so a failure is carried round it: to the caller
  // where the work ran inline, into the stream's error where it was queued.
  struct Work {
    std::decay_t<Body> run;
    bool queued;
    std::exception_ptr failure;
  };
  GilRelease released;
  Use use(*handle.device);
  AccelLaunch launch{};
  launch.struct_size = sizeof(AccelLaunch);
  launch.op = op;
  launch.work = [](void* arg, char* error, size_t size) -> int32_t {
    auto& work = *static_cast<Work*>(arg);
    try {
      work.run();
      return 0;
    } catch (...) {
      if (work.queued) std::snprintf(error, size, "the kernel ran out of memory");
      work.failure = std::current_exception();
      return work.queued ? 1 : 0;
    }
  };
  launch.accesses = accesses;
  launch.num_accesses = num_accesses;
  if (handle.runs_inline) {
    Work work{std::forward<Body>(body), false, nullptr};
    launch.arg = &work;
    check(*handle.device, handle.device->runtime->launch(handle.stream, &launch), op);
    if (work.failure)
      throw Error(ErrorKind::kOutOfMemory, "the kernel ran out of memory", op, "use a smaller step or fewer threads");
    return;
  }
  launch.arg = new Work{std::forward<Body>(body), true, nullptr};
  launch.release = [](void* arg) { delete static_cast<Work*>(arg); };
  check(*handle.device, handle.device->runtime->launch(handle.stream, &launch), op);
}

// The same for an op whose index arguments are read while it runs. On a queued stream the caller could change them after they
// were checked, so such ops take the compute stream; ops that may be queued copy what they index by.
template <typename Body>
void launch_compute(StreamHandle& handle, const char* op, const AccelAccess* accesses, size_t num_accesses, Body&& body) {
  if (handle.owned) {
    throw Error(ErrorKind::kInvalidArgument,
                "the stream is one for copies; this op computes, so it takes Device.current_stream()", op);
  }
  launch(handle, op, accesses, num_accesses, std::forward<Body>(body));
}

}  // namespace accel::py_bindings
