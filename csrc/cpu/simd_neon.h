// simd.h for AArch64 NEON: four q registers, lanes 4i to 4i+3 in the i-th. Included by simd.h only.
#pragma once

#include <arm_neon.h>

#include "half.h"

namespace accel::cpu {
namespace {

struct f32x16 {
  float32x4_t v[4];
};
struct u32x16 {
  uint32x4_t v[4];
};
struct mask16 {
  uint32x4_t v[4];
};

#define ACCEL_QUADS for (int i = 0; i < 4; ++i)

ACCEL_INLINE f32x16 load(const float* p) {
  f32x16 r;
  ACCEL_QUADS r.v[i] = vld1q_f32(p + 4 * i);
  return r;
}
ACCEL_INLINE void store(float* p, f32x16 a) { ACCEL_QUADS vst1q_f32(p + 4 * i, a.v[i]); }
ACCEL_INLINE f32x16 load_part(const float* p, int64_t n) {
  if (n >= 16) return load(p);
  float lanes[16] = {};
  for (int64_t i = 0; i < n; ++i) lanes[i] = p[i];
  return load(lanes);
}
ACCEL_INLINE void store_part(float* p, f32x16 a, int64_t n) {
  if (n >= 16) return store(p, a);
  float lanes[16];
  store(lanes, a);
  for (int64_t i = 0; i < n; ++i) p[i] = lanes[i];
}
ACCEL_INLINE f32x16 set1(float a) {
  f32x16 r;
  ACCEL_QUADS r.v[i] = vdupq_n_f32(a);
  return r;
}
ACCEL_INLINE f32x16 zero() { return set1(0.0f); }
ACCEL_INLINE f32x16 load_bf16(const uint16_t* p) {
  f32x16 r;
  ACCEL_QUADS r.v[i] = vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * i), 16));
  return r;
}
ACCEL_INLINE f32x16 load_f16(const uint16_t* p) {
  f32x16 r;
  ACCEL_QUADS r.v[i] = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i)));
  return r;
}
ACCEL_INLINE f32x16 widen_u8(uint8x16_t bytes) {
  const uint16x8_t low = vmovl_u8(vget_low_u8(bytes));
  const uint16x8_t high = vmovl_u8(vget_high_u8(bytes));
  return {{vcvtq_f32_u32(vmovl_u16(vget_low_u16(low))), vcvtq_f32_u32(vmovl_u16(vget_high_u16(low))),
           vcvtq_f32_u32(vmovl_u16(vget_low_u16(high))), vcvtq_f32_u32(vmovl_u16(vget_high_u16(high)))}};
}
ACCEL_INLINE f32x16 load_i8(const int8_t* p) {
  const int8x16_t bytes = vld1q_s8(p);
  const int16x8_t low = vmovl_s8(vget_low_s8(bytes));
  const int16x8_t high = vmovl_s8(vget_high_s8(bytes));
  return {{vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))),
           vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(high)))}};
}
ACCEL_INLINE void load_nibbles(const uint8_t* p, f32x16& low, f32x16& high) {
  const uint8x16_t bytes = vld1q_u8(p);
  low = widen_u8(vandq_u8(bytes, vdupq_n_u8(15)));
  high = widen_u8(vshrq_n_u8(bytes, 4));
}
ACCEL_INLINE void store_bf16(uint16_t* p, f32x16 a) {
  ACCEL_QUADS {
    const uint32x4_t u = vreinterpretq_u32_f32(a.v[i]);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(1));
    const uint32x4_t rounded = vaddq_u32(u, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
    const uint32x4_t quiet = vorrq_u32(u, vdupq_n_u32(0x400000));
    const uint32x4_t number = vceqq_f32(a.v[i], a.v[i]);
    vst1_u16(p + 4 * i, vshrn_n_u32(vbslq_u32(number, rounded, quiet), 16));
  }
}
ACCEL_INLINE void store_f16(uint16_t* p, f32x16 a) {
  ACCEL_QUADS vst1_u16(p + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(a.v[i])));
}

ACCEL_INLINE f32x16 add(f32x16 a, f32x16 b) {
  ACCEL_QUADS a.v[i] = vaddq_f32(a.v[i], b.v[i]);
  return a;
}
ACCEL_INLINE f32x16 sub(f32x16 a, f32x16 b) {
  ACCEL_QUADS a.v[i] = vsubq_f32(a.v[i], b.v[i]);
  return a;
}
ACCEL_INLINE f32x16 mul(f32x16 a, f32x16 b) {
  ACCEL_QUADS a.v[i] = vmulq_f32(a.v[i], b.v[i]);
  return a;
}
ACCEL_INLINE f32x16 div(f32x16 a, f32x16 b) {
  ACCEL_QUADS a.v[i] = vdivq_f32(a.v[i], b.v[i]);
  return a;
}
ACCEL_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
  ACCEL_QUADS c.v[i] = vfmaq_f32(c.v[i], a.v[i], b.v[i]);
  return c;
}
// Compare and pick: NEON's own max and min follow another NaN rule.
ACCEL_INLINE f32x16 max(f32x16 a, f32x16 b) {
  ACCEL_QUADS a.v[i] = vbslq_f32(vcgtq_f32(a.v[i], b.v[i]), a.v[i], b.v[i]);
  return a;
}
ACCEL_INLINE f32x16 min(f32x16 a, f32x16 b) {
  ACCEL_QUADS a.v[i] = vbslq_f32(vcltq_f32(a.v[i], b.v[i]), a.v[i], b.v[i]);
  return a;
}
ACCEL_INLINE float reduce_add(f32x16 a) {
  const float32x4_t v4 = vaddq_f32(vaddq_f32(a.v[0], a.v[2]), vaddq_f32(a.v[1], a.v[3]));
  const float32x2_t v2 = vadd_f32(vget_low_f32(v4), vget_high_f32(v4));
  return vget_lane_f32(v2, 0) + vget_lane_f32(v2, 1);
}
ACCEL_INLINE float reduce_max(f32x16 a) { return vmaxvq_f32(vmaxq_f32(vmaxq_f32(a.v[0], a.v[2]), vmaxq_f32(a.v[1], a.v[3]))); }

ACCEL_INLINE mask16 greater(f32x16 a, f32x16 b) {
  mask16 r;
  ACCEL_QUADS r.v[i] = vcgtq_f32(a.v[i], b.v[i]);
  return r;
}
ACCEL_INLINE mask16 greater_equal(f32x16 a, f32x16 b) {
  mask16 r;
  ACCEL_QUADS r.v[i] = vcgeq_f32(a.v[i], b.v[i]);
  return r;
}
ACCEL_INLINE mask16 equal(f32x16 a, f32x16 b) {
  mask16 r;
  ACCEL_QUADS r.v[i] = vceqq_f32(a.v[i], b.v[i]);
  return r;
}
ACCEL_INLINE mask16 not_nan(f32x16 a) { return equal(a, a); }
ACCEL_INLINE mask16 lanes_between(int64_t first, int64_t last) {
  uint32_t lanes[16];
  for (int64_t i = 0; i < 16; ++i) lanes[i] = i >= first && i < last ? ~0u : 0u;
  mask16 r;
  ACCEL_QUADS r.v[i] = vld1q_u32(lanes + 4 * i);
  return r;
}
ACCEL_INLINE f32x16 select(mask16 m, f32x16 a, f32x16 b) {
  ACCEL_QUADS a.v[i] = vbslq_f32(m.v[i], a.v[i], b.v[i]);
  return a;
}
ACCEL_INLINE uint32_t bits(mask16 m) {
  const uint32_t weights[4] = {1, 2, 4, 8};
  const uint32x4_t weight = vld1q_u32(weights);
  uint32_t r = 0;
  ACCEL_QUADS r |= vaddvq_u32(vandq_u32(m.v[i], weight)) << (4 * i);
  return r;
}

ACCEL_INLINE u32x16 set1_u32(uint32_t a) {
  u32x16 r;
  ACCEL_QUADS r.v[i] = vdupq_n_u32(a);
  return r;
}
ACCEL_INLINE u32x16 load_u32(const uint32_t* p) {
  u32x16 r;
  ACCEL_QUADS r.v[i] = vld1q_u32(p + 4 * i);
  return r;
}
ACCEL_INLINE u32x16 as_u32(f32x16 a) {
  u32x16 r;
  ACCEL_QUADS r.v[i] = vreinterpretq_u32_f32(a.v[i]);
  return r;
}
ACCEL_INLINE f32x16 as_f32(u32x16 a) {
  f32x16 r;
  ACCEL_QUADS r.v[i] = vreinterpretq_f32_u32(a.v[i]);
  return r;
}
ACCEL_INLINE f32x16 to_f32(u32x16 a) {
  f32x16 r;
  ACCEL_QUADS r.v[i] = vcvtq_f32_s32(vreinterpretq_s32_u32(a.v[i]));
  return r;
}
ACCEL_INLINE u32x16 add_u32(u32x16 a, u32x16 b) {
  ACCEL_QUADS a.v[i] = vaddq_u32(a.v[i], b.v[i]);
  return a;
}
ACCEL_INLINE u32x16 sub_u32(u32x16 a, u32x16 b) {
  ACCEL_QUADS a.v[i] = vsubq_u32(a.v[i], b.v[i]);
  return a;
}
ACCEL_INLINE u32x16 and_u32(u32x16 a, u32x16 b) {
  ACCEL_QUADS a.v[i] = vandq_u32(a.v[i], b.v[i]);
  return a;
}
ACCEL_INLINE u32x16 xor_u32(u32x16 a, u32x16 b) {
  ACCEL_QUADS a.v[i] = veorq_u32(a.v[i], b.v[i]);
  return a;
}
template <int N>
ACCEL_INLINE u32x16 shift_left(u32x16 a) {
  ACCEL_QUADS a.v[i] = vshlq_n_u32(a.v[i], N);
  return a;
}
template <int N>
ACCEL_INLINE u32x16 shift_right(u32x16 a) {
  ACCEL_QUADS a.v[i] = vshrq_n_u32(a.v[i], N);
  return a;
}
template <int N>
ACCEL_INLINE u32x16 shift_right_signed(u32x16 a) {
  ACCEL_QUADS a.v[i] = vreinterpretq_u32_s32(vshrq_n_s32(vreinterpretq_s32_u32(a.v[i]), N));
  return a;
}
ACCEL_INLINE void mul_wide(u32x16 a, u32x16 b, u32x16& high, u32x16& low) {
  ACCEL_QUADS {
    const uint32x4_t lo = vreinterpretq_u32_u64(vmull_u32(vget_low_u32(a.v[i]), vget_low_u32(b.v[i])));
    const uint32x4_t hi = vreinterpretq_u32_u64(vmull_u32(vget_high_u32(a.v[i]), vget_high_u32(b.v[i])));
    low.v[i] = vuzp1q_u32(lo, hi);
    high.v[i] = vuzp2q_u32(lo, hi);
  }
}

ACCEL_INLINE void transpose_4x4(float32x4_t (&r)[4]) {
  const float32x4x2_t a = vtrnq_f32(r[0], r[1]);
  const float32x4x2_t b = vtrnq_f32(r[2], r[3]);
  r[0] = vcombine_f32(vget_low_f32(a.val[0]), vget_low_f32(b.val[0]));
  r[1] = vcombine_f32(vget_low_f32(a.val[1]), vget_low_f32(b.val[1]));
  r[2] = vcombine_f32(vget_high_f32(a.val[0]), vget_high_f32(b.val[0]));
  r[3] = vcombine_f32(vget_high_f32(a.val[1]), vget_high_f32(b.val[1]));
}
ACCEL_INLINE void transpose(f32x16 (&r)[16]) {
  f32x16 out[16];
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 4; ++j) {
      float32x4_t block[4] = {r[4 * i].v[j], r[4 * i + 1].v[j], r[4 * i + 2].v[j], r[4 * i + 3].v[j]};
      transpose_4x4(block);
      for (int c = 0; c < 4; ++c) out[4 * j + c].v[i] = block[c];
    }
  }
  for (int i = 0; i < 16; ++i) r[i] = out[i];
}

#undef ACCEL_QUADS

}  // namespace
}  // namespace accel::cpu
