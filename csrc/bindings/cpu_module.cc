// accel.backends.cpu._native: the op set of the CPU backend.

#include <pybind11/stl.h>

#include <vector>

#include "accel/build_tag.h"
#include "cpu_ops.h"
#include "errors.h"

PYBIND11_MODULE(_native, module) {
  using namespace accel::py_bindings;  // NOLINT: the module's own namespace
  module.doc() = "CPU kernels of accel (native).";
  py::module_::import("accel._core");  // brings the classes Stream and View
  register_errors();

  bind_ops(module);
  module.def(
      "available_isas",
      [] {
        std::vector<std::string> names;
        for (const auto isa : {accel::cpu::Isa::kGeneric, accel::cpu::Isa::kAvx2, accel::cpu::Isa::kAvx512}) {
          if (accel::cpu::kernels(isa)) names.emplace_back(accel::cpu::isa_name(isa));
        }
        return names;
      },
      "Instruction sets that this build has and this machine can run.");
  module.def(
      "build_tag", [] { return std::string(accel::build_tag()); }, "Compiler, machine and version this module was built with.");
  module.def("affinity_threads", &accel::cpu::affinity_threads, "CPUs this process may run on.");
}
