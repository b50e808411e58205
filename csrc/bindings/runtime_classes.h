// Binds the runtime's classes into a module.
#pragma once

#include <pybind11/pybind11.h>

namespace accel::py_bindings {

void bind_runtime(pybind11::module_& module);

}  // namespace accel::py_bindings
