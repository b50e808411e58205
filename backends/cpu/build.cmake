# The CPU's native module: baseline code, and the kernels once for each instruction set, chosen at run time.
#
# Kernels and op bindings are object libraries, compiled once: backends/sim links them too.
# Only the unit of an instruction set is compiled with its flags, so that nothing outside it can contain an instruction that
# the machine may lack (tests/test_native_objects.py looks at the objects).
set(cpu ${CMAKE_CURRENT_SOURCE_DIR}/csrc/cpu)
set(bindings ${CMAKE_CURRENT_SOURCE_DIR}/csrc/bindings)

add_library(accel_cpu_kernels OBJECT
  ${cpu}/isa.cc
  ${cpu}/kernels_generic.cc
  ${cpu}/logits.cc
  ${cpu}/logprobs.cc
  ${cpu}/pack.cc
  ${cpu}/sample.cc
  ${cpu}/scratch.cc
  ${cpu}/step.cc
  ${cpu}/thread_pool.cc)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  target_sources(accel_cpu_kernels PRIVATE ${cpu}/kernels_avx2.cc ${cpu}/kernels_avx512.cc)
  set_source_files_properties(${cpu}/kernels_avx2.cc PROPERTIES COMPILE_OPTIONS "-mavx2;-mfma;-mf16c")
  set_source_files_properties(${cpu}/kernels_avx512.cc PROPERTIES
    COMPILE_OPTIONS "-mavx512f;-mavx512bw;-mavx512vl;-mavx512dq;-mavx2;-mfma;-mf16c")
endif()
target_link_libraries(accel_cpu_kernels PRIVATE accel_options Threads::Threads)

add_library(accel_cpu_bindings OBJECT
  ${bindings}/cpu_attention_ops.cc
  ${bindings}/cpu_compute_ops.cc
  ${bindings}/cpu_history.cc
  ${bindings}/cpu_logits_ops.cc
  ${bindings}/cpu_ops.cc
  ${bindings}/cpu_packing.cc
  ${bindings}/cpu_page_ops.cc
  ${bindings}/cpu_step_ops.cc
  ${bindings}/op_args.cc
  ${bindings}/tensor_reader.cc)
target_link_libraries(accel_cpu_bindings PRIVATE accel_options pybind11::pybind11)

pybind11_add_module(_cpu_native NO_EXTRAS ${bindings}/cpu_module.cc
  $<TARGET_OBJECTS:accel_cpu_bindings> $<TARGET_OBJECTS:accel_cpu_kernels>)
target_link_libraries(_cpu_native PRIVATE accel_options Threads::Threads)
set_target_properties(_cpu_native PROPERTIES OUTPUT_NAME _native LIBRARY_OUTPUT_DIRECTORY ${ACCEL_OUTPUT}/backends/cpu)
