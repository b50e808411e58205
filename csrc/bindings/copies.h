// Copies and fills as Python calls them: everything is checked before anything is queued.
#pragma once

#include <pybind11/pybind11.h>

#include "handles.h"
#include "view.h"

namespace accel::py_bindings {

// A contiguous tensor argument.
Tensor dense(py::handle object, const char* op, const char* argument);
// A stream of another device might belong to another runtime, or be closed while this device is not: it is refused.
void same_device(const DeviceState& d, const StreamHandle& stream, const char* op);

void copy(DeviceState& d, py::handle dst_object, py::handle src_object, StreamHandle& stream);
void copy_batch(DeviceState& d, const py::sequence& runs, StreamHandle& stream);
void fill(DeviceState& d, py::handle object, int byte, StreamHandle& stream);

}  // namespace accel::py_bindings
