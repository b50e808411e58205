// Binds the block pool and the block digests into a module.
#pragma once

#include <pybind11/pybind11.h>

namespace accel::py_bindings {

void bind_pool(pybind11::module_& module);

}  // namespace accel::py_bindings
