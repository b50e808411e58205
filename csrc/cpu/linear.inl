// out = x W^T + bias on packed weights.
//
// Invariant: acc = 0; for k rising: acc = fma(x[k], w[k], acc); then + bias. One row (decode) streams the weights through
// registers; more rows (prefill) go through tiles, with each slice of a panel expanded once into L1 for a block of rows.
#pragma once

#include "kernels.h"
#include "sizes.inl"
#include "thread_pool.h"
#include "tile.inl"
#include "weight.inl"

namespace accel::cpu {
namespace {

#if defined(ACCEL_SIMD_AVX512)
constexpr int kVectorPanels = 4;  // panels a single row runs through at once: 8 chains
#else
constexpr int kVectorPanels = 2;
#endif
constexpr int64_t kSlice = 128;        // k of a tile: 128 x 64 float32 is 32 KiB
constexpr int64_t kRowBlock = 1020;    // rows that share one expansion; x [1020, 128] stays in L2
constexpr int64_t kChunkWork = 16384;  // multiply-adds worth handing to another thread

struct LinearArgs {
  Rows out;
  ConstRows x;
  PackedWeight weight;
  const float* bias;
};

// Columns of panel `panel`, rows of `out`: n may cut the last panel.
ACCEL_INLINE float* panel_at(const LinearArgs& args, int64_t row, int64_t panel, int64_t& left_a, int64_t& left_b) {
  const int64_t left = smaller(args.weight.n - panel * kPanel, kPanel);
  left_a = smaller(left, 16);
  left_b = left - left_a;
  return args.out.data + row * args.out.row_stride + panel * kPanel;
}

ACCEL_INLINE void load_panel(const LinearArgs& args, int64_t row, int64_t panel, f32x16& a, f32x16& b) {
  int64_t left_a, left_b;
  const float* out = panel_at(args, row, panel, left_a, left_b);
  a = load_part(out, left_a);
  b = left_b > 0 ? load_part(out + 16, left_b) : zero();
}

ACCEL_INLINE void store_panel(const LinearArgs& args, int64_t row, int64_t panel, f32x16 a, f32x16 b) {
  int64_t left_a, left_b;
  float* out = panel_at(args, row, panel, left_a, left_b);
  store_part(out, a, left_a);
  if (left_b > 0) store_part(out + 16, b, left_b);
}

ACCEL_INLINE void add_bias(const LinearArgs& args, int64_t panel, f32x16& a, f32x16& b) {
  if (args.bias == nullptr) return;
  const int64_t left = smaller(args.weight.n - panel * kPanel, kPanel);
  const float* bias = args.bias + panel * kPanel;
  a = add(a, load_part(bias, smaller(left, 16)));
  if (left > 16) b = add(b, load_part(bias + 16, left - 16));
}

template <WeightFormat F, int P>
void one_row(const LinearArgs& args, int64_t panel) {
  const int64_t k = args.weight.k;
  const int64_t stride = panel_bytes<F>(k);
  const std::byte* block = static_cast<const std::byte*>(args.weight.data) + panel * stride;
  const float* x = args.x.data;
  f32x16 acc[P][2];
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p) acc[p][0] = acc[p][1] = zero();
  for (int64_t k0 = 0; k0 < k; k0 += kQuantBlock) {
    PanelReader<F> reader[P];
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) reader[p].open(block + p * stride);
    const int64_t rows = smaller(k - k0, kQuantBlock);
    for (int64_t i = 0; i < rows; ++i) {
      const f32x16 value = set1(x[k0 + i]);
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) {
        f32x16 a, b;
        reader[p].row(i, a, b);
        acc[p][0] = fma(value, a, acc[p][0]);
        acc[p][1] = fma(value, b, acc[p][1]);
      }
    }
    block += PanelReader<F>::kBlockBytes;
  }
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p) {
    add_bias(args, panel + p, acc[p][0], acc[p][1]);
    store_panel(args, 0, panel + p, acc[p][0], acc[p][1]);
  }
}

template <WeightFormat F>
void linear_one_row(ThreadPool& pool, const LinearArgs& args) {
  const int64_t panels = divide_up(args.weight.n, kPanel);
  const int64_t groups = divide_up(panels, kVectorPanels);
  const int64_t grain = divide_up(kChunkWork, kVectorPanels * kPanel * larger(args.weight.k, 1));
  pool.parallel_for(groups, grain, [&](int64_t begin, int64_t end) {
    int64_t panel = begin * kVectorPanels;
    const int64_t last = smaller(end * kVectorPanels, panels);
    for (; panel + kVectorPanels <= last; panel += kVectorPanels) one_row<F, kVectorPanels>(args, panel);
    for (; panel < last; ++panel) one_row<F, 1>(args, panel);
  });
}

// One tile of `rows` rows at out[row, panel * 32]. A tile that n cuts is computed in a padded buffer.
ACCEL_INLINE void linear_tile(const LinearArgs& args, Tile t, int64_t row, int64_t rows, int64_t panel, int64_t panels,
                              bool last) {
  alignas(64) float padded[kTileRows * kTilePanels * kPanel];
  const bool cut = (panel + panels) * kPanel > args.weight.n;
  t.out = cut ? padded : args.out.data + row * args.out.row_stride + panel * kPanel;
  t.out_stride = cut ? kTilePanels * kPanel : args.out.row_stride;
  f32x16 a, b;
  if (cut && !t.from_zero) {
    for (int64_t i = 0; i < rows * panels; ++i) {
      load_panel(args, row + i / panels, panel + i % panels, a, b);
      float* to = padded + (i / panels) * t.out_stride + (i % panels) * kPanel;
      store(to, a);
      store(to + 16, b);
    }
  }
  tile(t, rows, panels);
  if (!cut && !(last && args.bias != nullptr)) return;
  for (int64_t i = 0; i < rows * panels; ++i) {
    const float* from = t.out + (i / panels) * t.out_stride + (i % panels) * kPanel;
    a = load(from);
    b = load(from + 16);
    if (last) add_bias(args, panel + i % panels, a, b);
    store_panel(args, row + i / panels, panel + i % panels, a, b);
  }
}

// Panels [panel, panel + panels) for rows [row_begin, row_end).
template <WeightFormat F>
void linear_block(const LinearArgs& args, int64_t panel, int64_t panels, int64_t row_begin, int64_t row_end) {
  alignas(64) float expanded[kTilePanels * kSlice * kPanel];
  const int64_t k = args.weight.k, stride = panel_bytes<F>(k);
  const std::byte* data = static_cast<const std::byte*>(args.weight.data) + panel * stride;
  for (int64_t k0 = 0; k0 == 0 || k0 < k; k0 += kSlice) {
    Tile t;
    t.k = smaller(k - k0, kSlice);
    t.w_stride = kPanel;
    t.x_stride = args.x.row_stride;
    t.from_zero = k0 == 0;
    if constexpr (F == WeightFormat::kF32) {
      t.w = reinterpret_cast<const float*>(data) + k0 * kPanel;
      t.panel_stride = k * kPanel;
    } else {
      for (int64_t p = 0; p < panels; ++p) expand_panel<F>(expanded + p * kSlice * kPanel, data + p * stride, k0, t.k);
      t.w = expanded;
      t.panel_stride = kSlice * kPanel;
    }
    for (int64_t row = row_begin; row < row_end; row += kTileRows) {
      t.x = args.x.data + row * args.x.row_stride + k0;
      linear_tile(args, t, row, smaller(row_end - row, kTileRows), panel, panels, k0 + kSlice >= k);
    }
  }
}

// Tasks are (group of panels) x (block of rows); rows are cut further while there are too few tasks for the threads.
template <WeightFormat F>
void linear_many_rows(ThreadPool& pool, const LinearArgs& args) {
  const int64_t rows = args.x.rows, panels = divide_up(args.weight.n, kPanel);
  const int64_t groups = divide_up(panels, kTilePanels);
  const int64_t wanted = divide_up(4 * pool.threads(), groups);
  int64_t block = smaller(kRowBlock, divide_up(rows, wanted));
  block = divide_up(larger(block, 4 * kTileRows), kTileRows) * kTileRows;
  const int64_t blocks = divide_up(rows, block);
  const int64_t work = smaller(rows, block) * kTilePanels * kPanel * larger(args.weight.k, 1);
  pool.parallel_for(groups * blocks, divide_up(kChunkWork, work), [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t panel = task % groups * kTilePanels, row = task / groups * block;
      linear_block<F>(args, panel, smaller(panels - panel, kTilePanels), row, smaller(row + block, rows));
    }
  });
}

template <WeightFormat F>
void linear_format(ThreadPool& pool, const LinearArgs& args) {
  if (args.x.rows == 1) return linear_one_row<F>(pool, args);
  linear_many_rows<F>(pool, args);
}

void linear(ThreadPool& pool, const Rows& out, const ConstRows& x, const PackedWeight& weight, const float* bias) {
  if (x.rows == 0 || weight.n == 0) return;
  const LinearArgs args{out, x, weight, bias};
  switch (weight.format) {
    case WeightFormat::kF32:
      return linear_format<WeightFormat::kF32>(pool, args);
    case WeightFormat::kBF16:
      return linear_format<WeightFormat::kBF16>(pool, args);
    case WeightFormat::kF16:
      return linear_format<WeightFormat::kF16>(pool, args);
    case WeightFormat::kQ8:
      return linear_format<WeightFormat::kQ8>(pool, args);
    case WeightFormat::kQ4:
      return linear_format<WeightFormat::kQ4>(pool, args);
  }
}

}  // namespace
}  // namespace accel::cpu
