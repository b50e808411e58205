// simd.h for AVX2 with FMA and F16C: two ymm, lanes 0 to 7 and 8 to 15. Included by simd.h only.
#pragma once

#include <immintrin.h>

namespace accel::cpu {
namespace {

struct f32x16 {
  __m256 a, b;
};
struct u32x16 {
  __m256i a, b;
};
struct mask16 {
  __m256 a, b;
};

ACCEL_INLINE __m256i lane_numbers() { return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7); }
ACCEL_INLINE __m256i lanes_below(int64_t n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), lane_numbers());
}

ACCEL_INLINE f32x16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
ACCEL_INLINE f32x16 load_part(const float* p, int64_t n) {
  if (n >= 16) return load(p);
  return {_mm256_maskload_ps(p, lanes_below(n)), _mm256_maskload_ps(p + 8, lanes_below(n - 8))};
}
ACCEL_INLINE void store(float* p, f32x16 x) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
}
ACCEL_INLINE void store_part(float* p, f32x16 x, int64_t n) {
  if (n >= 16) return store(p, x);
  _mm256_maskstore_ps(p, lanes_below(n), x.a);
  _mm256_maskstore_ps(p + 8, lanes_below(n - 8), x.b);
}
ACCEL_INLINE f32x16 set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
ACCEL_INLINE f32x16 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }

ACCEL_INLINE __m128i load_128(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }

ACCEL_INLINE f32x16 load_bf16(const uint16_t* p) {
  const __m256i a = _mm256_slli_epi32(_mm256_cvtepu16_epi32(load_128(p)), 16);
  const __m256i b = _mm256_slli_epi32(_mm256_cvtepu16_epi32(load_128(p + 8)), 16);
  return {_mm256_castsi256_ps(a), _mm256_castsi256_ps(b)};
}
ACCEL_INLINE f32x16 load_f16(const uint16_t* p) { return {_mm256_cvtph_ps(load_128(p)), _mm256_cvtph_ps(load_128(p + 8))}; }
ACCEL_INLINE f32x16 widen_u8(__m128i bytes) {
  return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)), _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8)))};
}
ACCEL_INLINE f32x16 load_i8(const int8_t* p) {
  const __m128i bytes = load_128(p);
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)))};
}
ACCEL_INLINE void load_nibbles(const uint8_t* p, f32x16& low, f32x16& high) {
  const __m128i bytes = load_128(p);
  const __m128i mask = _mm_set1_epi8(15);
  low = widen_u8(_mm_and_si128(bytes, mask));
  high = widen_u8(_mm_and_si128(_mm_srli_epi16(bytes, 4), mask));
}
ACCEL_INLINE __m256i round_bf16(__m256 x) {
  const __m256i u = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
}
ACCEL_INLINE void store_bf16(uint16_t* p, f32x16 x) {
  const __m256i packed = _mm256_packus_epi32(round_bf16(x.a), round_bf16(x.b));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xD8));
}
ACCEL_INLINE void store_f16(uint16_t* p, f32x16 x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT));
}

ACCEL_INLINE f32x16 add(f32x16 x, f32x16 y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
ACCEL_INLINE f32x16 sub(f32x16 x, f32x16 y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
ACCEL_INLINE f32x16 mul(f32x16 x, f32x16 y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
ACCEL_INLINE f32x16 div(f32x16 x, f32x16 y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
ACCEL_INLINE f32x16 fma(f32x16 x, f32x16 y, f32x16 z) {
  return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
ACCEL_INLINE f32x16 max(f32x16 x, f32x16 y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
ACCEL_INLINE f32x16 min(f32x16 x, f32x16 y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }

ACCEL_INLINE float reduce_add(f32x16 x) {
  const __m256 v8 = _mm256_add_ps(x.a, x.b);
  const __m128 v4 = _mm_add_ps(_mm256_castps256_ps128(v8), _mm256_extractf128_ps(v8, 1));
  const __m128 v2 = _mm_add_ps(v4, _mm_movehl_ps(v4, v4));
  return _mm_cvtss_f32(_mm_add_ss(v2, _mm_movehdup_ps(v2)));
}
ACCEL_INLINE float reduce_max(f32x16 x) {
  const __m256 v8 = _mm256_max_ps(x.a, x.b);
  const __m128 v4 = _mm_max_ps(_mm256_castps256_ps128(v8), _mm256_extractf128_ps(v8, 1));
  const __m128 v2 = _mm_max_ps(v4, _mm_movehl_ps(v4, v4));
  return _mm_cvtss_f32(_mm_max_ss(v2, _mm_movehdup_ps(v2)));
}

ACCEL_INLINE mask16 greater(f32x16 x, f32x16 y) {
  return {_mm256_cmp_ps(x.a, y.a, _CMP_GT_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_GT_OQ)};
}
ACCEL_INLINE mask16 greater_equal(f32x16 x, f32x16 y) {
  return {_mm256_cmp_ps(x.a, y.a, _CMP_GE_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_GE_OQ)};
}
ACCEL_INLINE mask16 equal(f32x16 x, f32x16 y) {
  return {_mm256_cmp_ps(x.a, y.a, _CMP_EQ_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_EQ_OQ)};
}
ACCEL_INLINE mask16 not_nan(f32x16 x) { return equal(x, x); }
ACCEL_INLINE mask16 lanes_between(int64_t first, int64_t last) {
  const int64_t from = first < 0 ? 0 : first > 16 ? 16 : first;
  const int64_t to = last < 0 ? 0 : last > 16 ? 16 : last;
  return {_mm256_castsi256_ps(_mm256_andnot_si256(lanes_below(from), lanes_below(to))),
          _mm256_castsi256_ps(_mm256_andnot_si256(lanes_below(from - 8), lanes_below(to - 8)))};
}
ACCEL_INLINE f32x16 select(mask16 m, f32x16 x, f32x16 y) {
  return {_mm256_blendv_ps(y.a, x.a, m.a), _mm256_blendv_ps(y.b, x.b, m.b)};
}
ACCEL_INLINE uint32_t bits(mask16 m) {
  return static_cast<uint32_t>(_mm256_movemask_ps(m.a)) | (static_cast<uint32_t>(_mm256_movemask_ps(m.b)) << 8);
}

ACCEL_INLINE u32x16 set1_u32(uint32_t x) {
  return {_mm256_set1_epi32(static_cast<int>(x)), _mm256_set1_epi32(static_cast<int>(x))};
}
ACCEL_INLINE u32x16 load_u32(const uint32_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 8))};
}
ACCEL_INLINE u32x16 as_u32(f32x16 x) { return {_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)}; }
ACCEL_INLINE f32x16 as_f32(u32x16 x) { return {_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)}; }
ACCEL_INLINE f32x16 to_f32(u32x16 x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
ACCEL_INLINE u32x16 add_u32(u32x16 x, u32x16 y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
ACCEL_INLINE u32x16 sub_u32(u32x16 x, u32x16 y) { return {_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)}; }
ACCEL_INLINE u32x16 and_u32(u32x16 x, u32x16 y) { return {_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)}; }
ACCEL_INLINE u32x16 xor_u32(u32x16 x, u32x16 y) { return {_mm256_xor_si256(x.a, y.a), _mm256_xor_si256(x.b, y.b)}; }
template <int N>
ACCEL_INLINE u32x16 shift_left(u32x16 x) {
  return {_mm256_slli_epi32(x.a, N), _mm256_slli_epi32(x.b, N)};
}
template <int N>
ACCEL_INLINE u32x16 shift_right(u32x16 x) {
  return {_mm256_srli_epi32(x.a, N), _mm256_srli_epi32(x.b, N)};
}
template <int N>
ACCEL_INLINE u32x16 shift_right_signed(u32x16 x) {
  return {_mm256_srai_epi32(x.a, N), _mm256_srai_epi32(x.b, N)};
}
ACCEL_INLINE void mul_wide_half(__m256i x, __m256i y, __m256i& high, __m256i& low) {
  const __m256i even = _mm256_mul_epu32(x, y);
  const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(x, 32), _mm256_srli_epi64(y, 32));
  low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA);
  high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA);
}
ACCEL_INLINE void mul_wide(u32x16 x, u32x16 y, u32x16& high, u32x16& low) {
  mul_wide_half(x.a, y.a, high.a, low.a);
  mul_wide_half(x.b, y.b, high.b, low.b);
}

ACCEL_INLINE void transpose_8x8(__m256 (&r)[8]) {
  __m256 t[8], u[8];
  for (int i = 0; i < 8; i += 2) {  // pairs of rows
    t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {  // u[i + c]: column c (mod 4) of rows i … i+3, in both 128-bit lanes
    u[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
    u[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xEE);
    u[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    u[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xEE);
  }
  for (int c = 0; c < 4; ++c) {
    r[c] = _mm256_permute2f128_ps(u[c], u[c + 4], 0x20);
    r[c + 4] = _mm256_permute2f128_ps(u[c], u[c + 4], 0x31);
  }
}
ACCEL_INLINE void transpose(f32x16 (&r)[16]) {
  __m256 top_left[8], top_right[8], bottom_left[8], bottom_right[8];
  for (int i = 0; i < 8; ++i) {
    top_left[i] = r[i].a;
    top_right[i] = r[i].b;
    bottom_left[i] = r[i + 8].a;
    bottom_right[i] = r[i + 8].b;
  }
  transpose_8x8(top_left);
  transpose_8x8(top_right);
  transpose_8x8(bottom_left);
  transpose_8x8(bottom_right);
  for (int i = 0; i < 8; ++i) {
    r[i] = {top_left[i], bottom_left[i]};
    r[i + 8] = {top_right[i], bottom_right[i]};
  }
}

}  // namespace
}  // namespace accel::cpu
