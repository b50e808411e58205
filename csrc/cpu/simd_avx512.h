// simd.h for AVX-512 (F, BW, VL, DQ): one zmm. Included by simd.h only.
#pragma once

#if defined(__GNUC__) && !defined(__clang__)
// g++ 12 takes the deliberately undefined operands inside its own header for mistakes (GCC bug 105593).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#else
#include <immintrin.h>
#endif

namespace accel::cpu {
namespace {

struct f32x16 {
  __m512 v;
};
struct u32x16 {
  __m512i v;
};
struct mask16 {
  __mmask16 v;
};

ACCEL_INLINE __mmask16 first_lanes(int64_t n) { return static_cast<__mmask16>((1u << n) - 1u); }

ACCEL_INLINE f32x16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
ACCEL_INLINE f32x16 load_part(const float* p, int64_t n) { return {_mm512_maskz_loadu_ps(first_lanes(n), p)}; }
ACCEL_INLINE void store(float* p, f32x16 a) { _mm512_storeu_ps(p, a.v); }
ACCEL_INLINE void store_part(float* p, f32x16 a, int64_t n) { _mm512_mask_storeu_ps(p, first_lanes(n), a.v); }
ACCEL_INLINE f32x16 set1(float a) { return {_mm512_set1_ps(a)}; }
ACCEL_INLINE f32x16 zero() { return {_mm512_setzero_ps()}; }

ACCEL_INLINE f32x16 load_bf16(const uint16_t* p) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}
ACCEL_INLINE f32x16 load_f16(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
ACCEL_INLINE f32x16 load_i8(const int8_t* p) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
// A permutation of the table 0 … 15 reads only the low four bits of its index: mask and conversion in one instruction.
ACCEL_INLINE void load_nibbles(const uint8_t* p, f32x16& low, f32x16& high) {
  const __m512 table = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i wide = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  low.v = _mm512_permutexvar_ps(wide, table);
  high.v = _mm512_permutexvar_ps(_mm512_srli_epi32(wide, 4), table);
}
ACCEL_INLINE void store_bf16(uint16_t* p, f32x16 a) {
  const __m512i u = _mm512_castps_si512(a.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __m512i quiet = _mm512_or_si512(u, _mm512_set1_epi32(0x400000));
  const __mmask16 nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
  const __m512i r = _mm512_srli_epi32(_mm512_mask_blend_epi32(nan, rounded, quiet), 16);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(r));
}
ACCEL_INLINE void store_f16(uint16_t* p, f32x16 a) {
  const __m256i r = _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), r);
}

ACCEL_INLINE f32x16 add(f32x16 a, f32x16 b) { return {_mm512_add_ps(a.v, b.v)}; }
ACCEL_INLINE f32x16 sub(f32x16 a, f32x16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
ACCEL_INLINE f32x16 mul(f32x16 a, f32x16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
ACCEL_INLINE f32x16 div(f32x16 a, f32x16 b) { return {_mm512_div_ps(a.v, b.v)}; }
ACCEL_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
ACCEL_INLINE f32x16 max(f32x16 a, f32x16 b) { return {_mm512_max_ps(a.v, b.v)}; }
ACCEL_INLINE f32x16 min(f32x16 a, f32x16 b) { return {_mm512_min_ps(a.v, b.v)}; }

ACCEL_INLINE float reduce_add(f32x16 a) {
  const __m256 v8 = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m128 v4 = _mm_add_ps(_mm256_castps256_ps128(v8), _mm256_extractf128_ps(v8, 1));
  const __m128 v2 = _mm_add_ps(v4, _mm_movehl_ps(v4, v4));
  return _mm_cvtss_f32(_mm_add_ss(v2, _mm_movehdup_ps(v2)));
}
ACCEL_INLINE float reduce_max(f32x16 a) {
  const __m256 v8 = _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m128 v4 = _mm_max_ps(_mm256_castps256_ps128(v8), _mm256_extractf128_ps(v8, 1));
  const __m128 v2 = _mm_max_ps(v4, _mm_movehl_ps(v4, v4));
  return _mm_cvtss_f32(_mm_max_ss(v2, _mm_movehdup_ps(v2)));
}

ACCEL_INLINE mask16 greater(f32x16 a, f32x16 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ)}; }
ACCEL_INLINE mask16 greater_equal(f32x16 a, f32x16 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_GE_OQ)}; }
ACCEL_INLINE mask16 equal(f32x16 a, f32x16 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ)}; }
ACCEL_INLINE mask16 not_nan(f32x16 a) { return equal(a, a); }
ACCEL_INLINE mask16 lanes_between(int64_t first, int64_t last) {
  const int64_t from = first < 0 ? 0 : first > 16 ? 16 : first;
  const int64_t to = last < 0 ? 0 : last > 16 ? 16 : last;
  return {static_cast<__mmask16>(first_lanes(to) & ~first_lanes(from))};
}
ACCEL_INLINE f32x16 select(mask16 m, f32x16 a, f32x16 b) { return {_mm512_mask_blend_ps(m.v, b.v, a.v)}; }
ACCEL_INLINE uint32_t bits(mask16 m) { return m.v; }

ACCEL_INLINE u32x16 set1_u32(uint32_t a) { return {_mm512_set1_epi32(static_cast<int>(a))}; }
ACCEL_INLINE u32x16 load_u32(const uint32_t* p) { return {_mm512_loadu_si512(p)}; }
ACCEL_INLINE u32x16 as_u32(f32x16 a) { return {_mm512_castps_si512(a.v)}; }
ACCEL_INLINE f32x16 as_f32(u32x16 a) { return {_mm512_castsi512_ps(a.v)}; }
ACCEL_INLINE f32x16 to_f32(u32x16 a) { return {_mm512_cvtepi32_ps(a.v)}; }
ACCEL_INLINE u32x16 add_u32(u32x16 a, u32x16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
ACCEL_INLINE u32x16 sub_u32(u32x16 a, u32x16 b) { return {_mm512_sub_epi32(a.v, b.v)}; }
ACCEL_INLINE u32x16 and_u32(u32x16 a, u32x16 b) { return {_mm512_and_si512(a.v, b.v)}; }
ACCEL_INLINE u32x16 xor_u32(u32x16 a, u32x16 b) { return {_mm512_xor_si512(a.v, b.v)}; }
template <int N>
ACCEL_INLINE u32x16 shift_left(u32x16 a) {
  return {_mm512_slli_epi32(a.v, N)};
}
template <int N>
ACCEL_INLINE u32x16 shift_right(u32x16 a) {
  return {_mm512_srli_epi32(a.v, N)};
}
template <int N>
ACCEL_INLINE u32x16 shift_right_signed(u32x16 a) {
  return {_mm512_srai_epi32(a.v, N)};
}
ACCEL_INLINE void mul_wide(u32x16 a, u32x16 b, u32x16& high, u32x16& low) {
  const __m512i even = _mm512_mul_epu32(a.v, b.v);
  const __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(a.v, 32), _mm512_srli_epi64(b.v, 32));
  low.v = _mm512_mask_blend_epi32(0xAAAA, even, _mm512_slli_epi64(odd, 32));
  high.v = _mm512_mask_blend_epi32(0xAAAA, _mm512_srli_epi64(even, 32), odd);
}

ACCEL_INLINE void transpose(f32x16 (&r)[16]) {
  __m512 t[16];
  for (int i = 0; i < 16; i += 2) {  // pairs of rows
    t[i] = _mm512_unpacklo_ps(r[i].v, r[i + 1].v);
    t[i + 1] = _mm512_unpackhi_ps(r[i].v, r[i + 1].v);
  }
  __m512 u[16];
  for (int i = 0; i < 16; i += 4) {  // u[i + c]: column c (mod 4) of rows i … i+3, in each of the four 128-bit lanes
    u[i] = _mm512_shuffle_ps(t[i], t[i + 2], 0x44);
    u[i + 1] = _mm512_shuffle_ps(t[i], t[i + 2], 0xEE);
    u[i + 2] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    u[i + 3] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0xEE);
  }
  for (int c = 0; c < 4; ++c) {  // a 4 x 4 transpose of 128-bit lanes
    const __m512 a = _mm512_shuffle_f32x4(u[c], u[c + 4], 0x88);
    const __m512 b = _mm512_shuffle_f32x4(u[c], u[c + 4], 0xDD);
    const __m512 d = _mm512_shuffle_f32x4(u[c + 8], u[c + 12], 0x88);
    const __m512 e = _mm512_shuffle_f32x4(u[c + 8], u[c + 12], 0xDD);
    r[c].v = _mm512_shuffle_f32x4(a, d, 0x88);
    r[c + 4].v = _mm512_shuffle_f32x4(b, e, 0x88);
    r[c + 8].v = _mm512_shuffle_f32x4(a, d, 0xDD);
    r[c + 12].v = _mm512_shuffle_f32x4(b, e, 0xDD);
  }
}

}  // namespace
}  // namespace accel::cpu
