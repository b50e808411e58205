// silu(gate) * up, where silu(x) = x / (1 + exp(-x)) in plain IEEE arithmetic (so silu(-inf) is NaN).
#pragma once

#include "kernels.h"
#include "math.inl"
#include "sizes.inl"
#include "thread_pool.h"

namespace accel::cpu {
namespace {

void silu_and_mul(ThreadPool& pool, const Rows& out, const ConstRows& x) {
  const int64_t width = out.dim;
  pool.parallel_for(x.rows, items_per_chunk(4 * width), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* gate = x.data + row * x.row_stride;
      float* to = out.data + row * out.row_stride;
      for (int64_t i = 0; i < width; i += 16) {
        const int64_t n = smaller(width - i, 16);
        const f32x16 g = load_part(gate + i, n);
        const f32x16 silu = div(g, add(set1(1.0f), exp(sub(zero(), g))));
        store_part(to + i, mul(silu, load_part(gate + width + i, n)), n);
      }
    }
  });
}

}  // namespace
}  // namespace accel::cpu
