// RMS norm, plain and after a residual addition.
//
// Invariant: the sum of squares has the lane order kernels.h states; 1 / sqrt and the rest are single IEEE operations.
#pragma once

#include "kernels.h"
#include "sizes.inl"
#include "thread_pool.h"

namespace accel::cpu {
namespace {

void norm_row(float* out, const float* x, const float* weight, int64_t dim, float eps) {
  f32x16 squares = zero();
  int64_t d = 0;
  for (; d + 16 <= dim; d += 16) {
    const f32x16 v = load(x + d);
    squares = fma(v, v, squares);
  }
  if (d < dim) {
    const f32x16 v = load_part(x + d, dim - d);
    squares = fma(v, v, squares);
  }
  const float mean = reduce_add(squares) / static_cast<float>(dim);
  const f32x16 inverse = set1(1.0f / __builtin_sqrtf(mean + eps));
  for (d = 0; d + 16 <= dim; d += 16) store(out + d, mul(mul(load(x + d), inverse), load(weight + d)));
  if (d < dim) {
    const int64_t n = dim - d;
    store_part(out + d, mul(mul(load_part(x + d, n), inverse), load_part(weight + d, n)), n);
  }
}

void rms_norm(ThreadPool& pool, const Rows& out, const ConstRows& x, const float* weight, float eps) {
  pool.parallel_for(x.rows * x.heads, items_per_chunk(x.dim), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i / x.heads, head = i % x.heads;
      norm_row(out.data + row * out.row_stride + head * out.head_stride, x.data + row * x.row_stride + head * x.head_stride,
               weight, x.dim, eps);
    }
  });
}

void add_rms_norm(ThreadPool& pool, const Rows& out, const Rows& residual, const ConstRows& x, const float* weight, float eps) {
  pool.parallel_for(x.rows, items_per_chunk(x.dim), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      float* sum = residual.data + row * residual.row_stride;
      const float* from = x.data + row * x.row_stride;
      for (int64_t d = 0; d < x.dim; d += 16) {
        const int64_t n = smaller(x.dim - d, 16);
        store_part(sum + d, add(load_part(sum + d, n), load_part(from + d, n)), n);
      }
      norm_row(out.data + row * out.row_stride, sum, weight, x.dim, eps);
    }
  });
}

}  // namespace
}  // namespace accel::cpu
