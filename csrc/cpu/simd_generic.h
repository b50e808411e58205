// simd.h without vector instructions: arrays of 16 that the compiler may vectorise, and fma from the C library where the
// machine has none. This is the definition the other sets are tested against.
#pragma once

#include "half.h"

namespace accel::cpu {
namespace {

struct f32x16 {
  float lane[16];
};
struct u32x16 {
  uint32_t lane[16];
};
struct mask16 {
  uint32_t lane[16];  // 0 or ~0
};

#define ACCEL_LANES for (int i = 0; i < 16; ++i)

ACCEL_INLINE f32x16 load(const float* p) {
  f32x16 r;
  std::memcpy(r.lane, p, sizeof r.lane);
  return r;
}
ACCEL_INLINE void store(float* p, f32x16 a) { std::memcpy(p, a.lane, sizeof a.lane); }
ACCEL_INLINE f32x16 set1(float a) {
  f32x16 r;
  ACCEL_LANES r.lane[i] = a;
  return r;
}
ACCEL_INLINE f32x16 zero() { return set1(0.0f); }
ACCEL_INLINE f32x16 load_part(const float* p, int64_t n) {
  if (n >= 16) return load(p);
  f32x16 r = zero();
  for (int64_t i = 0; i < n; ++i) r.lane[i] = p[i];
  return r;
}
ACCEL_INLINE void store_part(float* p, f32x16 a, int64_t n) {
  if (n >= 16) return store(p, a);
  for (int64_t i = 0; i < n; ++i) p[i] = a.lane[i];
}
ACCEL_INLINE f32x16 load_bf16(const uint16_t* p) {
  f32x16 r;
  ACCEL_LANES r.lane[i] = bf16_to_f32(p[i]);
  return r;
}
ACCEL_INLINE f32x16 load_f16(const uint16_t* p) {
  f32x16 r;
  ACCEL_LANES r.lane[i] = f16_to_f32(p[i]);
  return r;
}
ACCEL_INLINE f32x16 load_i8(const int8_t* p) {
  f32x16 r;
  ACCEL_LANES r.lane[i] = static_cast<float>(p[i]);
  return r;
}
ACCEL_INLINE void load_nibbles(const uint8_t* p, f32x16& low, f32x16& high) {
  ACCEL_LANES low.lane[i] = static_cast<float>(p[i] & 15);
  ACCEL_LANES high.lane[i] = static_cast<float>(p[i] >> 4);
}
ACCEL_INLINE void store_bf16(uint16_t* p, f32x16 a) { ACCEL_LANES p[i] = f32_to_bf16(a.lane[i]); }
ACCEL_INLINE void store_f16(uint16_t* p, f32x16 a) { ACCEL_LANES p[i] = f32_to_f16(a.lane[i]); }

ACCEL_INLINE f32x16 add(f32x16 a, f32x16 b) {
  ACCEL_LANES a.lane[i] += b.lane[i];
  return a;
}
ACCEL_INLINE f32x16 sub(f32x16 a, f32x16 b) {
  ACCEL_LANES a.lane[i] -= b.lane[i];
  return a;
}
ACCEL_INLINE f32x16 mul(f32x16 a, f32x16 b) {
  ACCEL_LANES a.lane[i] *= b.lane[i];
  return a;
}
ACCEL_INLINE f32x16 div(f32x16 a, f32x16 b) {
  ACCEL_LANES a.lane[i] /= b.lane[i];
  return a;
}
ACCEL_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
  ACCEL_LANES a.lane[i] = __builtin_fmaf(a.lane[i], b.lane[i], c.lane[i]);
  return a;
}
ACCEL_INLINE f32x16 max(f32x16 a, f32x16 b) {
  ACCEL_LANES a.lane[i] = a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i];
  return a;
}
ACCEL_INLINE f32x16 min(f32x16 a, f32x16 b) {
  ACCEL_LANES a.lane[i] = a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i];
  return a;
}
ACCEL_INLINE float reduce_add(f32x16 a) {
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) a.lane[i] += a.lane[i + width];
  }
  return a.lane[0];
}
ACCEL_INLINE float reduce_max(f32x16 a) {
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) a.lane[i] = a.lane[i] > a.lane[i + width] ? a.lane[i] : a.lane[i + width];
  }
  return a.lane[0];
}

ACCEL_INLINE mask16 greater(f32x16 a, f32x16 b) {
  mask16 r;
  ACCEL_LANES r.lane[i] = a.lane[i] > b.lane[i] ? ~0u : 0u;
  return r;
}
ACCEL_INLINE mask16 greater_equal(f32x16 a, f32x16 b) {
  mask16 r;
  ACCEL_LANES r.lane[i] = a.lane[i] >= b.lane[i] ? ~0u : 0u;
  return r;
}
ACCEL_INLINE mask16 equal(f32x16 a, f32x16 b) {
  mask16 r;
  ACCEL_LANES r.lane[i] = a.lane[i] == b.lane[i] ? ~0u : 0u;
  return r;
}
ACCEL_INLINE mask16 not_nan(f32x16 a) { return equal(a, a); }
ACCEL_INLINE mask16 lanes_between(int64_t first, int64_t last) {
  mask16 r;
  ACCEL_LANES r.lane[i] = i >= first && i < last ? ~0u : 0u;
  return r;
}
ACCEL_INLINE f32x16 select(mask16 m, f32x16 a, f32x16 b) {
  ACCEL_LANES a.lane[i] = m.lane[i] != 0 ? a.lane[i] : b.lane[i];
  return a;
}
ACCEL_INLINE uint32_t bits(mask16 m) {
  uint32_t r = 0;
  ACCEL_LANES r |= (m.lane[i] & 1u) << i;
  return r;
}

ACCEL_INLINE u32x16 set1_u32(uint32_t a) {
  u32x16 r;
  ACCEL_LANES r.lane[i] = a;
  return r;
}
ACCEL_INLINE u32x16 load_u32(const uint32_t* p) {
  u32x16 r;
  std::memcpy(r.lane, p, sizeof r.lane);
  return r;
}
ACCEL_INLINE u32x16 as_u32(f32x16 a) {
  u32x16 r;
  std::memcpy(r.lane, a.lane, sizeof r.lane);
  return r;
}
ACCEL_INLINE f32x16 as_f32(u32x16 a) {
  f32x16 r;
  std::memcpy(r.lane, a.lane, sizeof r.lane);
  return r;
}
ACCEL_INLINE f32x16 to_f32(u32x16 a) {
  f32x16 r;
  ACCEL_LANES r.lane[i] = static_cast<float>(static_cast<int32_t>(a.lane[i]));
  return r;
}
ACCEL_INLINE u32x16 add_u32(u32x16 a, u32x16 b) {
  ACCEL_LANES a.lane[i] += b.lane[i];
  return a;
}
ACCEL_INLINE u32x16 sub_u32(u32x16 a, u32x16 b) {
  ACCEL_LANES a.lane[i] -= b.lane[i];
  return a;
}
ACCEL_INLINE u32x16 and_u32(u32x16 a, u32x16 b) {
  ACCEL_LANES a.lane[i] &= b.lane[i];
  return a;
}
ACCEL_INLINE u32x16 xor_u32(u32x16 a, u32x16 b) {
  ACCEL_LANES a.lane[i] ^= b.lane[i];
  return a;
}
template <int N>
ACCEL_INLINE u32x16 shift_left(u32x16 a) {
  ACCEL_LANES a.lane[i] <<= N;
  return a;
}
template <int N>
ACCEL_INLINE u32x16 shift_right(u32x16 a) {
  ACCEL_LANES a.lane[i] >>= N;
  return a;
}
template <int N>
ACCEL_INLINE u32x16 shift_right_signed(u32x16 a) {
  ACCEL_LANES a.lane[i] = static_cast<uint32_t>(static_cast<int32_t>(a.lane[i]) >> N);
  return a;
}
ACCEL_INLINE void mul_wide(u32x16 a, u32x16 b, u32x16& high, u32x16& low) {
  ACCEL_LANES {
    const uint64_t product = static_cast<uint64_t>(a.lane[i]) * b.lane[i];
    high.lane[i] = static_cast<uint32_t>(product >> 32);
    low.lane[i] = static_cast<uint32_t>(product);
  }
}

ACCEL_INLINE void transpose(f32x16 (&r)[16]) {
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < i; ++j) {
      const float t = r[i].lane[j];
      r[i].lane[j] = r[j].lane[i];
      r[j].lane[i] = t;
    }
  }
}

#undef ACCEL_LANES

}  // namespace
}  // namespace accel::cpu
