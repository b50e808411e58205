// Keeps Python from making objects that C++ never initialised.
#pragma once

#include <pybind11/pybind11.h>

namespace accel::py_bindings {

// For a class that only C++ makes: pybind11's __new__ would hand out an object without a value, which any method then reads.
inline void forbid_new(pybind11::handle cls) {
  reinterpret_cast<PyTypeObject*>(cls.ptr())->tp_new = [](PyTypeObject* type, PyObject*, PyObject*) -> PyObject* {
    PyErr_Format(PyExc_TypeError, "%s cannot be made here; the library hands it out", type->tp_name);
    return nullptr;
  };
}

}  // namespace accel::py_bindings
