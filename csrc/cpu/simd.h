// The vector of the CPU kernels: 16 lanes of float32 (f32x16), of uint32 (u32x16), and a mask of 16 lanes (mask16).
//
// Invariant: an operation gives the same bits on every instruction set. So there are only operations IEEE 754 rounds in one
// way (add, sub, mul, div, fma, conversions), reductions have a fixed tree, and max/min have a NaN rule:
//   max(a, b) = a > b ? a : b      min(a, b) = a < b ? a : b      (so a NaN in either operand gives b)
// Which NaN an operation returns (sign, payload) is left open; that it is one is not.
//
// | type            | AVX-512  | AVX2 (+ FMA, F16C) | NEON         | generic           |
// | f32x16, u32x16  | one zmm  | two ymm            | four q       | array of 16       |
// | mask16          | k        | two ymm            | four q       | array of 16 words |
//
// Every set defines exactly these, all internal to the translation unit that includes it. A unit built with wider
// instructions must leave no symbol another unit could be linked to (an inline function compiled for AVX-512 and kept by
// the linker would crash an older machine), so nothing in this folder's .inl and simd*.h files has external linkage.
//
//   f32x16  load load_part set1 zero load_bf16 load_f16 load_i8 load_nibbles        store store_part store_bf16 store_f16
//           add sub mul div fma(a, b, c) = a*b + c   max min   reduce_add reduce_max (no NaN among the lanes)
//   mask16  greater greater_equal equal not_nan lanes_between select bits
//   u32x16  set1_u32 load_u32 as_u32 as_f32 to_f32 (signed) add_u32 sub_u32 and_u32 xor_u32 shift_left shift_right
//           shift_right_signed mul_wide
//   transpose of a 16 x 16 block
//
// Trees: reduce_add folds lanes i and i + 8, then i and i + 4, i + 2, i + 1. load_part(p, n) reads n lanes (0 to 16) and
// fills with zero. load_nibbles reads 16 bytes: low nibbles to one vector, high nibbles to the other.
#pragma once

#include <cstdint>
#include <cstring>

#define ACCEL_INLINE static inline __attribute__((always_inline))
#define ACCEL_MEMBER inline __attribute__((always_inline))

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__) && defined(__FMA__)
#define ACCEL_SIMD_AVX512 1
#include "simd_avx512.h"
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define ACCEL_SIMD_AVX2 1
#include "simd_avx2.h"
#elif defined(__aarch64__) && defined(__ARM_NEON)
#define ACCEL_SIMD_NEON 1
#include "simd_neon.h"
#else
#define ACCEL_SIMD_GENERIC 1
#include "simd_generic.h"
#endif
