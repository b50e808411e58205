// From Python objects to accel::Tensor: the View class, and the caster behind every op argument.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <string>
#include <vector>

#include "accel/tensor.h"

namespace accel::py_bindings {

namespace py = pybind11;

// A tensor whose address, shape and strides are known once and for all; keeps its owner alive. What a caller makes of every
// long-lived tensor, so that passing it to an op costs nothing.
struct View {
  Tensor tensor;
  py::object owner;
};

// Reads `object` as a tensor: a View, anything with DLPack's exchange table (Paddle, PyTorch), a NumPy array, or anything with
// data_ptr(), shape and dtype. Borrowed: valid while `object` lives. Throws Error(kInvalidArgument) naming `op` and `argument`.
Tensor read_tensor(py::handle object, const char* op, const char* argument);

void bind_view(py::module_& module);

DataType parse_dtype(const std::string& name);

}  // namespace accel::py_bindings
