// The inner loop of linear and attention: R rows of x against P panels of 32 columns, in registers.
//
//            k →                    panel 0 (32)   panel 1
//   x  r0  [ . . . . ]      w  k0  [ 16 | 16 ]    [ 16 | 16 ]
//      r1  [ . . . . ]         k1  [    |    ]    [    |    ]      out[r][column] = fma chain over k, rising
//
// Invariant: a column's chain depends on its own row of x and its own column of w only, so R, P and where k is cut (the
// accumulators pass through `out` as float32, which is exact) are free choices of speed.
#pragma once

#include "simd.h"

namespace accel::cpu {
namespace {

#if defined(ACCEL_SIMD_AVX512)
constexpr int kTileRows = 6, kTilePanels = 2;  // 24 accumulators of 32 registers
#else
constexpr int kTileRows = 3, kTilePanels = 1;  // AVX2: 12 of 16; NEON: 24 of 32
#endif

struct Tile {
  float* out;
  int64_t out_stride;
  const float* x;
  int64_t x_stride;
  const float* w;
  int64_t w_stride;      // from one k to the next
  int64_t panel_stride;  // from one panel to the next
  int64_t k;
  bool from_zero;  // else go on from what `out` holds
};

template <int R, int P>
void tile_fixed(const Tile& t) {
  f32x16 acc[R][2 * P];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < 2 * P; ++v) acc[r][v] = t.from_zero ? zero() : load(t.out + r * t.out_stride + v * 16);
  }
  const float* w = t.w;
  const float* x = t.x;
  const int64_t w_stride = t.w_stride, panel_stride = t.panel_stride, x_stride = t.x_stride;
  for (int64_t k = 0; k < t.k; ++k) {
    f32x16 column[2 * P];
#pragma GCC unroll 4
    for (int v = 0; v < 2 * P; ++v) column[v] = load(w + (v / 2) * panel_stride + (v % 2) * 16);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const f32x16 value = set1(x[r * x_stride + k]);
#pragma GCC unroll 4
      for (int v = 0; v < 2 * P; ++v) acc[r][v] = fma(value, column[v], acc[r][v]);
    }
    w += w_stride;
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < 2 * P; ++v) store(t.out + r * t.out_stride + v * 16, acc[r][v]);
  }
}

template <int P>
ACCEL_INLINE void tile_rows(const Tile& t, int64_t rows) {
  switch (rows) {
    case 1:
      return tile_fixed<1, P>(t);
    case 2:
      return tile_fixed<2, P>(t);
    case 3:
      return tile_fixed<3, P>(t);
#if defined(ACCEL_SIMD_AVX512)
    case 4:
      return tile_fixed<4, P>(t);
    case 5:
      return tile_fixed<5, P>(t);
    case 6:
      return tile_fixed<6, P>(t);
#endif
    default:
      return;
  }
}

// rows <= kTileRows, panels <= kTilePanels.
ACCEL_INLINE void tile(const Tile& t, int64_t rows, int64_t panels) {
#if defined(ACCEL_SIMD_AVX512)
  if (panels == 2) return tile_rows<2>(t, rows);
#endif
  static_cast<void>(panels);
  tile_rows<1>(t, rows);
}

}  // namespace
}  // namespace accel::cpu
