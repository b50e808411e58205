// accel._core: what every backend shares. Knows no framework and no vendor.

#include <pybind11/pybind11.h>

#include "errors.h"
#include "forbid_new.h"
#include "pool_class.h"
#include "runtime_classes.h"
#include "view.h"

PYBIND11_MODULE(_core, module) {
  module.doc() = "Runtime tables, streams, events, tensor views and the block pool (native).";
  accel::py_bindings::register_errors();
  accel::py_bindings::bind_view(module);
  accel::py_bindings::forbid_new(module.attr("View"));
  accel::py_bindings::bind_runtime(module);
  accel::py_bindings::bind_pool(module);
}
