// Integer helpers, and the one rule for how much elementwise work is worth a thread. Internal: see simd.h.
#pragma once

#include "simd.h"

namespace accel::cpu {
namespace {

ACCEL_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
ACCEL_INLINE int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
ACCEL_INLINE int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Items of `elements` each that make a chunk: about 16 K elements, some microseconds.
ACCEL_INLINE int64_t items_per_chunk(int64_t elements) { return larger(1, 16384 / larger(elements, 1)); }

}  // namespace
}  // namespace accel::cpu
