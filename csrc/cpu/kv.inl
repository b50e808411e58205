// Elements of the KV cache: reading a token's vector as float32, and writing k and v to their pages.
#pragma once

#include "kernels.h"
#include "sizes.inl"
#include "thread_pool.h"

namespace accel::cpu {
namespace {

template <Elem E>
struct KvElement;
template <>
struct KvElement<Elem::kF32> {
  using type = float;
  static ACCEL_MEMBER f32x16 load16(const float* p) { return load(p); }
  static ACCEL_MEMBER void store16(float* p, f32x16 v) { store(p, v); }
};
template <>
struct KvElement<Elem::kBF16> {
  using type = uint16_t;
  static ACCEL_MEMBER f32x16 load16(const uint16_t* p) { return load_bf16(p); }
  static ACCEL_MEMBER void store16(uint16_t* p, f32x16 v) { store_bf16(p, v); }
};
template <>
struct KvElement<Elem::kF16> {
  using type = uint16_t;
  static ACCEL_MEMBER f32x16 load16(const uint16_t* p) { return load_f16(p); }
  static ACCEL_MEMBER void store16(uint16_t* p, f32x16 v) { store_f16(p, v); }
};

// n elements (1 to 16) as float32, zeros after them.
template <Elem E>
ACCEL_INLINE f32x16 load_kv(const typename KvElement<E>::type* p, int64_t n) {
  if (n == 16) return KvElement<E>::load16(p);
  typename KvElement<E>::type padded[16] = {};
  for (int64_t i = 0; i < n; ++i) padded[i] = p[i];
  return KvElement<E>::load16(padded);
}

template <Elem E>
ACCEL_INLINE void store_kv(typename KvElement<E>::type* p, f32x16 v, int64_t n) {
  if (n == 16) return KvElement<E>::store16(p, v);
  typename KvElement<E>::type padded[16];
  KvElement<E>::store16(padded, v);
  for (int64_t i = 0; i < n; ++i) p[i] = padded[i];
}

template <Elem E>
void write_token(const float* from, const KvLayer& kv, int64_t slot, int64_t which, int64_t head) {
  auto* data = static_cast<typename KvElement<E>::type*>(kv.data);
  auto* to = data + slot / kv.block_size * kv.block_stride + which * kv.kv_stride + head * kv.head_stride +
             slot % kv.block_size * kv.dim;
  for (int64_t d = 0; d < kv.dim; d += 16) {
    const int64_t n = smaller(kv.dim - d, 16);
    store_kv<E>(to + d, load_part(from + d, n), n);
  }
}

template <Elem E>
void write_kv_elem(ThreadPool& pool, const ConstRows& k, const ConstRows& v, const KvLayer& kv, const int64_t* slot_mapping) {
  pool.parallel_for(k.rows, items_per_chunk(2 * k.heads * k.dim), [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) {
      const int64_t slot = slot_mapping[token];
      if (slot < 0) continue;
      for (int64_t head = 0; head < k.heads; ++head) {
        write_token<E>(k.data + token * k.row_stride + head * k.head_stride, kv, slot, 0, head);
        write_token<E>(v.data + token * v.row_stride + head * v.head_stride, kv, slot, 1, head);
      }
    }
  });
}

void write_kv(ThreadPool& pool, const ConstRows& k, const ConstRows& v, const KvLayer& kv, const int64_t* slot_mapping) {
  switch (kv.elem) {
    case Elem::kF32:
      return write_kv_elem<Elem::kF32>(pool, k, v, kv, slot_mapping);
    case Elem::kBF16:
      return write_kv_elem<Elem::kBF16>(pool, k, v, kv, slot_mapping);
    case Elem::kF16:
      return write_kv_elem<Elem::kF16>(pool, k, v, kv, slot_mapping);
  }
}

}  // namespace
}  // namespace accel::cpu
