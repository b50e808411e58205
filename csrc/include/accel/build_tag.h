// What a native module was built from: compared and printed wherever two builds meet.
#pragma once

#include "accel/runtime.h"

#ifndef ACCEL_VERSION
#error "ACCEL_VERSION comes from CMake"
#endif

#define ACCEL_TEXT_(x) #x
#define ACCEL_TEXT(x) ACCEL_TEXT_(x)
#if defined(__clang__)
#define ACCEL_COMPILER "clang " __clang_version__
#else
#define ACCEL_COMPILER "gcc " __VERSION__
#endif
#if defined(__x86_64__)
#define ACCEL_MACHINE "x86-64"
#elif defined(__aarch64__)
#define ACCEL_MACHINE "aarch64"
#else
#define ACCEL_MACHINE "unknown machine"
#endif

namespace accel {

constexpr const char* build_tag() {
  return "accel " ACCEL_VERSION
         ", runtime ABI " ACCEL_TEXT(ACCEL_RUNTIME_ABI_MAJOR) "." ACCEL_TEXT(ACCEL_RUNTIME_ABI_MINOR) ", " ACCEL_COMPILER
                                                                                                      ", " ACCEL_MACHINE;
}

}  // namespace accel
