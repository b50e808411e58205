// Rotary position embedding in place: pairs (i, i + E/2), or (2i, 2i + 1) where interleaved, of the first E elements.
#pragma once

#include "kernels.h"
#include "sizes.inl"
#include "thread_pool.h"

namespace accel::cpu {
namespace {

void rotate_halves(float* x, const float* cosine, const float* sine, int64_t half) {
  for (int64_t i = 0; i < half; i += 16) {
    const int64_t n = smaller(half - i, 16);
    const f32x16 a = load_part(x + i, n), b = load_part(x + half + i, n);
    const f32x16 c = load_part(cosine + i, n), s = load_part(sine + i, n);
    store_part(x + i, fma(a, c, sub(zero(), mul(b, s))), n);
    store_part(x + half + i, fma(b, c, mul(a, s)), n);
  }
}

void rotate_pairs(float* x, const float* cosine, const float* sine, int64_t half) {
  for (int64_t i = 0; i < half; ++i) {
    const float a = x[2 * i], b = x[2 * i + 1];
    x[2 * i] = __builtin_fmaf(a, cosine[i], 0.0f - b * sine[i]);
    x[2 * i + 1] = __builtin_fmaf(b, cosine[i], a * sine[i]);
  }
}

void rotary(ThreadPool& pool, const Rows& x, const int32_t* positions, const float* table, int64_t rotary_dim,
            bool interleaved) {
  pool.parallel_for(x.rows, items_per_chunk(x.heads * rotary_dim), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* cosine = table + positions[row] * rotary_dim;
      const float* sine = cosine + rotary_dim / 2;
      for (int64_t head = 0; head < x.heads; ++head) {
        float* data = x.data + row * x.row_stride + head * x.head_stride;
        if (interleaved) {
          rotate_pairs(data, cosine, sine, rotary_dim / 2);
        } else {
          rotate_halves(data, cosine, sine, rotary_dim / 2);
        }
      }
    }
  });
}

}  // namespace
}  // namespace accel::cpu
