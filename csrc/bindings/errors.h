// Raises accel::Error as the class of the same name in accel/errors.py.
#pragma once

#include <pybind11/pybind11.h>

#include "accel/error.h"

namespace accel::py_bindings {

namespace py = pybind11;

inline const char* error_class(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kAbiMismatch:
      return "AbiMismatch";
    case ErrorKind::kUnsupported:
      return "Unsupported";
    case ErrorKind::kInvalidArgument:
      return "InvalidArgument";
    case ErrorKind::kOutOfMemory:
      return "OutOfMemory";
    case ErrorKind::kTimeout:
      return "Timeout";
    case ErrorKind::kAsyncFailure:
      return "AsyncFailure";
    case ErrorKind::kDeviceLost:
      return "DeviceLost";
    case ErrorKind::kInternal:
      break;
  }
  return "AccelError";
}

// Local to each module: an exception thrown in one shared object need not match the type in another.
inline void register_errors() {
  py::register_local_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const Error& error) {
      py::object type = py::module_::import("accel.errors").attr(error_class(error.kind));
      py::dict fields;
      if (!error.op.empty()) fields["op"] = error.op;
      if (!error.hint.empty()) fields["hint"] = error.hint;
      PyErr_SetObject(type.ptr(), type(error.what(), **fields).ptr());
    }
  });
}

}  // namespace accel::py_bindings
