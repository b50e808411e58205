// Rows of a packed weight, and rows of a float32 matrix.
#pragma once

#include <cstring>

#include "half.h"
#include "kernels.h"
#include "sizes.inl"
#include "thread_pool.h"
#include "weight.inl"

namespace accel::cpu {
namespace {

// Row `id` of the weight: one column of its panel, so every k lies apart from the next.
template <WeightFormat F>
void unpack_row(float* out, const PackedWeight& weight, int64_t id) {
  const std::byte* block = static_cast<const std::byte*>(weight.data) + id / kPanel * panel_bytes<F>(weight.k);
  const int64_t column = id % kPanel;
  for (int64_t k0 = 0; k0 < weight.k; k0 += kQuantBlock, block += PanelReader<F>::kBlockBytes) {
    const int64_t rows = smaller(weight.k - k0, kQuantBlock);
    const auto* halves = reinterpret_cast<const uint16_t*>(block);
    for (int64_t i = 0; i < rows; ++i) {
      float value;
      if constexpr (F == WeightFormat::kF32) {
        value = reinterpret_cast<const float*>(block)[i * kPanel + column];
      } else if constexpr (F == WeightFormat::kBF16) {
        value = bf16_to_f32(halves[i * kPanel + column]);
      } else if constexpr (F == WeightFormat::kF16) {
        value = f16_to_f32(halves[i * kPanel + column]);
      } else if constexpr (F == WeightFormat::kQ8) {
        const auto q = reinterpret_cast<const int8_t*>(block + 64)[i * kPanel + column];
        value = static_cast<float>(q) * f16_to_f32(halves[column]);
      } else {
        const auto pair = reinterpret_cast<const uint8_t*>(block + 128)[i * 16 + column % 16];
        const int q = column < 16 ? pair & 15 : pair >> 4;
        value = __builtin_fmaf(static_cast<float>(q), f16_to_f32(halves[column]), f16_to_f32(halves[kPanel + column]));
      }
      out[k0 + i] = value;
    }
  }
}

template <WeightFormat F>
void embedding_format(ThreadPool& pool, const Rows& out, const int32_t* ids, const PackedWeight& weight) {
  pool.parallel_for(out.rows, items_per_chunk(8 * weight.k), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) unpack_row<F>(out.data + row * out.row_stride, weight, ids[row]);
  });
}

void embedding(ThreadPool& pool, const Rows& out, const int32_t* ids, const PackedWeight& weight) {
  switch (weight.format) {
    case WeightFormat::kF32:
      return embedding_format<WeightFormat::kF32>(pool, out, ids, weight);
    case WeightFormat::kBF16:
      return embedding_format<WeightFormat::kBF16>(pool, out, ids, weight);
    case WeightFormat::kF16:
      return embedding_format<WeightFormat::kF16>(pool, out, ids, weight);
    case WeightFormat::kQ8:
      return embedding_format<WeightFormat::kQ8>(pool, out, ids, weight);
    case WeightFormat::kQ4:
      return embedding_format<WeightFormat::kQ4>(pool, out, ids, weight);
  }
}

void gather_rows(ThreadPool& pool, const Rows& out, const ConstRows& x, const int32_t* index) {
  pool.parallel_for(out.rows, items_per_chunk(x.heads * x.dim), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t head = 0; head < x.heads; ++head) {
        std::memcpy(out.data + row * out.row_stride + head * out.head_stride,
                    x.data + index[row] * x.row_stride + head * x.head_stride, static_cast<size_t>(x.dim) * sizeof(float));
      }
    }
  });
}

}  // namespace
}  // namespace accel::cpu
