// Giving up and taking the GIL on threads that may outlive the interpreter.
//
// Once Python finalises, a thread that asks for the GIL is ended by pthread_exit, whose unwinding aborts the process at the
// first noexcept function (any destructor). A thread that comes back that late has nothing left to do, so it is parked until
// the process ends.
#pragma once

#include <Python.h>

#include <unistd.h>

namespace accel::py_bindings {

inline bool python_finalizing() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing() != 0;
#else
  return !Py_IsInitialized() || _Py_IsFinalizing() != 0;
#endif
}

[[noreturn]] inline void park_thread() {
  for (;;) pause();
}

// True on the thread that finalises Python, once it has given the GIL up in doing so: it alone gets the GIL back.
inline thread_local bool g_finalizer = false;

// Gives the GIL up for a scope. Declare it before what must be let go (locks, Use) before the thread may be parked.
class GilRelease {
 public:
  GilRelease() {
    if (python_finalizing()) g_finalizer = true;
    state_ = PyEval_SaveThread();
  }
  GilRelease(const GilRelease&) = delete;
  GilRelease& operator=(const GilRelease&) = delete;
  ~GilRelease() {
    if (python_finalizing() && !g_finalizer) park_thread();
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {  // the unwinding of pthread_exit: finalisation began meanwhile
      park_thread();
    }
  }

 private:
  PyThreadState* state_;
};

// Takes the GIL for a scope, on any thread.
class GilAcquire {
 public:
  GilAcquire() {
    if (python_finalizing() && !g_finalizer && !PyGILState_Check()) park_thread();
    try {
      state_ = PyGILState_Ensure();
    } catch (...) {
      park_thread();
    }
  }
  GilAcquire(const GilAcquire&) = delete;
  GilAcquire& operator=(const GilAcquire&) = delete;
  ~GilAcquire() {
    // Also reached by that unwinding, from Python code that ran in this scope; then the GIL is not held.
    if (!PyGILState_Check()) park_thread();
    PyGILState_Release(state_);
  }

 private:
  PyGILState_STATE state_;
};

}  // namespace accel::py_bindings
