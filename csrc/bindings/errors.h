// Raises accel::Error as the class of the same name in accel/errors.py.
#pragma once

#include <pybind11/pybind11.h>

#include <string>
#include <utility>

#include "accel/error.h"

namespace accel::py_bindings {

namespace py = pybind11;

inline PyObject* error_class(ErrorKind kind) {
  static PyObject* classes[8] = {};  // kept for good: looked up once, because a raise must not import
  if (!classes[0]) {
    const char* const names[] = {"AbiMismatch", "Unsupported",  "InvalidArgument", "OutOfMemory",
                                 "Timeout",     "AsyncFailure", "DeviceLost",      "AccelError"};
    const py::module_ errors = py::module_::import("accel.errors");
    for (int i = 7; i >= 0; --i) classes[i] = py::object(errors.attr(names[i])).release().ptr();
  }
  switch (kind) {
    case ErrorKind::kAbiMismatch:
      return classes[0];
    case ErrorKind::kUnsupported:
      return classes[1];
    case ErrorKind::kInvalidArgument:
      return classes[2];
    case ErrorKind::kOutOfMemory:
      return classes[3];
    case ErrorKind::kTimeout:
      return classes[4];
    case ErrorKind::kAsyncFailure:
      return classes[5];
    case ErrorKind::kDeviceLost:
      return classes[6];
    case ErrorKind::kInternal:
      break;
  }
  return classes[7];
}

// Sets the Python error. Throws nothing, for pybind11 would then report the original as a RuntimeError. An error that is
// pending already (a signal's handler raised during a wait) is the better one and stays.
inline void raise(const Error& error) {
  if (PyErr_Occurred()) return;
  PyObject* const type = error_class(error.kind);
  PyObject* const args = Py_BuildValue("(s)", error.what());
  PyObject* const fields = PyDict_New();
  bool good = args && fields;
  for (const auto& [name, text] : {std::pair<const char*, const std::string&>("op", error.op), {"hint", error.hint}}) {
    if (!good || text.empty()) continue;
    PyObject* const value = PyUnicode_FromString(text.c_str());
    good = value && PyDict_SetItemString(fields, name, value) == 0;
    Py_XDECREF(value);
  }
  PyObject* const raised = good ? PyObject_Call(type, args, fields) : nullptr;
  if (raised) PyErr_SetObject(type, raised);
  Py_XDECREF(raised);
  Py_XDECREF(fields);
  Py_XDECREF(args);
}

// Local to each module: an exception thrown in one shared object need not match the type in another.
inline void register_errors() {
  error_class(ErrorKind::kInternal);
  py::register_local_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const Error& error) {
      raise(error);
    }
  });
}

}  // namespace accel::py_bindings
