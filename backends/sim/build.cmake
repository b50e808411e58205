# The simulated device's native module: csrc/sim, and the CPU kernels as its ops.
if(NOT TARGET accel_cpu_kernels)
  message(FATAL_ERROR "The target sim runs the CPU kernels, so it needs the target cpu before it: ACCEL_TARGETS='cpu;sim'")
endif()
set(sim ${CMAKE_CURRENT_SOURCE_DIR}/csrc/sim)

pybind11_add_module(_sim_native NO_EXTRAS
  ${CMAKE_CURRENT_SOURCE_DIR}/csrc/bindings/sim_module.cc
  ${sim}/access.cc
  ${sim}/checker.cc
  ${sim}/machine.cc
  ${sim}/memory.cc
  ${sim}/runtime.cc
  $<TARGET_OBJECTS:accel_cpu_bindings> $<TARGET_OBJECTS:accel_cpu_kernels>)
target_link_libraries(_sim_native PRIVATE accel_options Threads::Threads)
set_target_properties(_sim_native PROPERTIES OUTPUT_NAME _native LIBRARY_OUTPUT_DIRECTORY ${ACCEL_OUTPUT}/backends/sim)
