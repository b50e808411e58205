// Attention of a few query rows over one partition of the KV positions: the arithmetic. attention.inl shares out the work.
//
//   positions   0        128       256            Positions are absolute, so where a partition begins does not depend on
//               | part 0  | part 1  | part 2 …    the chunk, the batch or the page size.
//
//   per row and partition, over the row's visible positions only:
//     score = (fma chain over d of q[d] * k[d]) * scale            lanes are tokens
//     m = max score;  p = exp(score - m);  l = sum of p            lane j adds positions = j mod 16, rising; then the tree
//     acc[d] = fma chain over tokens, rising, of p * v[d]          lanes are d
//   and partitions are joined in rising order (join_partition), whoever computed them. A row that sees nothing of a
//   partition skips it.
//
// Invariant: a row's result depends on its own visible tokens only. Tokens other rows see may be read, never multiplied in;
// tokens nobody sees are not read.
#pragma once

#include "kernels.h"
#include "kv.inl"
#include "math.inl"
#include "sizes.inl"
#include "tile.inl"

namespace accel::cpu {
namespace {

constexpr int64_t kPartition = 128;
constexpr int64_t kAttentionRows = 64;  // rows (queries x heads of a group) that share one reading of K and V

struct Span {
  int64_t first, last;  // [first, last), empty when first >= last
};

// Rows of one kv head: queries [query, query + queries) of a request, each with `group` heads, query-major.
struct RowBlock {
  int64_t request, kv_head, token, queries, group;
  int64_t position;  // absolute, of the first query
  int64_t window;
  int64_t rows() const { return queries * group; }
};

// What row `row` sees of the partition that begins at `begin`, relative to it.
ACCEL_INLINE Span visible(const RowBlock& block, int64_t row, int64_t begin) {
  const int64_t position = block.position + row / block.group;
  const int64_t first = block.window > 0 ? larger(0, position - block.window + 1) : 0;
  return {larger(first - begin, 0), smaller(position + 1 - begin, kPartition)};
}

// Sizes and places of a chunk's working memory, in float32.
struct PartScratch {
  float* q;           // [rows, dim]
  float* keys;        // [4 panels][dim][32 tokens]
  float* values;      // [128 tokens][wide]: the same memory, as scores are done with keys by then and L1 holds only one
  float* scores;      // [rows, 128]
  int64_t dim, wide;  // wide: dim padded to whole panels
};

// A row's state: [m, l, acc[wide]] with acc aligned like wide.
ACCEL_INLINE int64_t state_stride(int64_t wide) { return wide + 16; }

// Where K of each visible token of a partition lies (V is kv_stride further); null for tokens nobody sees.
template <Elem E>
struct TokenMap {
  using type = typename KvElement<E>::type;
  const type* token[kPartition];
};

template <Elem E>
void map_tokens(const AttentionArgs& args, const RowBlock& block, int64_t begin, Span seen, TokenMap<E>& map) {
  const KvLayer& kv = args.kv;
  const auto* head = static_cast<const typename KvElement<E>::type*>(kv.data) + block.kv_head * kv.head_stride;
  const int32_t* table = args.block_tables + block.request * args.table_stride;
  for (int64_t t = 0; t < seen.first; ++t) map.token[t] = nullptr;
  for (int64_t t = seen.last; t < kPartition; ++t) map.token[t] = nullptr;
  int64_t page = (begin + seen.first) / kv.block_size, offset = (begin + seen.first) % kv.block_size;
  for (int64_t t = seen.first; t < seen.last; ++page, offset = 0) {
    const auto* start = head + table[page] * kv.block_stride;
    for (; offset < kv.block_size && t < seen.last; ++offset, ++t) map.token[t] = start + offset * kv.dim;
  }
}

// K of 16 tokens transposed into half a panel; Whole: every token is visible and dim is a multiple of 16.
template <Elem E, bool Whole>
ACCEL_INLINE void transpose_keys(const typename KvElement<E>::type* const* token, int64_t dim, float* to) {
  for (int64_t d = 0; d < dim; d += 16) {
    const int64_t n = Whole ? 16 : smaller(dim - d, 16);
    f32x16 lanes[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) lanes[i] = Whole || token[i] != nullptr ? load_kv<E>(token[i] + d, n) : zero();
    transpose(lanes);
    for (int64_t i = 0; i < n; ++i) store(to + (d + i) * 32, lanes[i]);
  }
}

// K of tokens `seen`, transposed into panels of 32 tokens; lanes outside are zero.
template <Elem E>
void load_keys(const TokenMap<E>& map, Span seen, const PartScratch& s) {
  for (int64_t t = seen.first / 32 * 32; t < divide_up(seen.last, 32) * 32; t += 16) {
    float* to = s.keys + t / 32 * s.dim * 32 + t % 32;
    if (t >= seen.first && t + 16 <= seen.last && s.dim % 16 == 0) {
      transpose_keys<E, true>(map.token + t, s.dim, to);
    } else if (t + 16 > seen.first && t < seen.last) {
      transpose_keys<E, false>(map.token + t, s.dim, to);
    } else {
      for (int64_t d = 0; d < s.dim; ++d) store(to + d * 32, zero());
    }
  }
}

template <Elem E>
void load_values(const TokenMap<E>& map, int64_t kv_stride, Span seen, const PartScratch& s) {
  const int64_t whole = s.dim / 16 * 16;
  for (int64_t t = seen.first; t < seen.last; ++t) {
    const auto* token = map.token[t] + kv_stride;
    float* to = s.values + t * s.wide;
    int64_t d = 0;
    for (; d < whole; d += 16) store(to + d, KvElement<E>::load16(token + d));
    if (d < s.dim) store(to + d, load_kv<E>(token + d, s.dim - d));
    for (d = divide_up(s.dim, 16) * 16; d < s.wide; d += 16) store(to + d, zero());
  }
}

// q . k of all rows with all tokens of the panels `seen` touches. Pairs a row does not see are computed and ignored.
void score_tiles(const PartScratch& s, int64_t rows, Span seen) {
  Tile t;
  t.k = s.dim;
  t.w_stride = 32;
  t.panel_stride = s.dim * 32;
  t.x_stride = s.dim;
  t.out_stride = kPartition;
  t.from_zero = true;
  const int64_t last = divide_up(seen.last, 32);
  for (int64_t panel = seen.first / 32; panel < last; panel += kTilePanels) {
    t.w = s.keys + panel * t.panel_stride;
    for (int64_t row = 0; row < rows; row += kTileRows) {
      t.x = s.q + row * s.dim;
      t.out = s.scores + row * kPartition + panel * 32;
      tile(t, smaller(rows - row, kTileRows), smaller(last - panel, kTilePanels));
    }
  }
}

// Scores to probabilities in place, over `seen`; lanes around it become 0. Minus infinity everywhere gives l = 0.
void softmax_row(float* scores, Span seen, float scale, float* m, float* l) {
  const f32x16 lowest = set1(-__builtin_inff());
  const int64_t from = seen.first / 16 * 16;
  f32x16 most = lowest;
  for (int64_t t = from; t < seen.last; t += 16) {
    const mask16 inside = lanes_between(seen.first - t, seen.last - t);
    const f32x16 score = mul(load(scores + t), set1(scale));
    store(scores + t, score);
    most = max(select(inside, score, lowest), most);
  }
  *m = reduce_max(most);
  const f32x16 base = set1(*m == -__builtin_inff() ? 0.0f : *m);
  f32x16 sum = zero();
  for (int64_t t = from; t < seen.last; t += 16) {
    const mask16 inside = lanes_between(seen.first - t, seen.last - t);
    const f32x16 p = select(inside, exp(sub(load(scores + t), base)), zero());
    store(scores + t, p);
    sum = add(sum, p);
  }
  *l = reduce_add(sum);
}

// acc of rows [row, row + count) += p * v over tokens [first, last).
void value_tiles(const PartScratch& s, float* state, int64_t row, int64_t count, int64_t first, int64_t last, bool from_zero) {
  if (first >= last && !from_zero) return;
  Tile t;
  t.k = larger(last - first, 0);
  t.w_stride = s.wide;
  t.panel_stride = 32;
  t.x = s.scores + row * kPartition + first;
  t.x_stride = kPartition;
  t.out_stride = state_stride(s.wide);
  t.from_zero = from_zero;
  for (int64_t d = 0; d < s.wide; d += 32 * kTilePanels) {
    t.w = s.values + first * s.wide + d;
    t.out = state + row * t.out_stride + 16 + d;
    tile(t, count, smaller((s.wide - d) / 32, kTilePanels));
  }
}

// Rows of a tile see almost the same tokens: each alone up to where all see, all together, each alone for the rest.
void weigh_values(const RowBlock& block, int64_t begin, const PartScratch& s, float* state) {
  for (int64_t row = 0; row < block.rows(); row += kTileRows) {
    const int64_t count = smaller(block.rows() - row, kTileRows);
    Span all{0, kPartition};
    for (int64_t r = row; r < row + count; ++r) {
      const Span seen = visible(block, r, begin);
      all = {larger(all.first, seen.first), smaller(all.last, seen.last)};
    }
    if (all.first >= all.last) {
      for (int64_t r = row; r < row + count; ++r) {
        const Span seen = visible(block, r, begin);
        if (seen.first < seen.last) value_tiles(s, state, r, 1, seen.first, seen.last, true);
      }
      continue;
    }
    bool started = false;
    for (int64_t r = row; r < row + count; ++r) started = started || visible(block, r, begin).first < all.first;
    for (int64_t r = row; started && r < row + count; ++r) {
      value_tiles(s, state, r, 1, visible(block, r, begin).first, all.first, true);
    }
    value_tiles(s, state, row, count, all.first, all.last, !started);
    for (int64_t r = row; r < row + count; ++r) value_tiles(s, state, r, 1, all.last, visible(block, r, begin).last, false);
  }
}

// state[row] = (m, l, acc) of partition `part`, for the rows that see any of it.
template <Elem E>
void attend_partition(const AttentionArgs& args, const RowBlock& block, int64_t part, const PartScratch& s, float* state) {
  const int64_t begin = part * kPartition, rows = block.rows();
  const Span seen{visible(block, 0, begin).first, visible(block, rows - 1, begin).last};
  if (seen.first >= seen.last) return;
  TokenMap<E> map;
  map_tokens(args, block, begin, seen, map);
  load_keys(map, seen, s);
  score_tiles(s, rows, seen);
  for (int64_t row = 0; row < rows; ++row) {
    const Span own = visible(block, row, begin);
    float* to = state + row * state_stride(s.wide);
    if (own.first < own.last) softmax_row(s.scores + row * kPartition, own, args.scale, to, to + 1);
  }
  load_values(map, args.kv.kv_stride, seen, s);
  weigh_values(block, begin, s, state);
}

// total (m, l, acc) joined with one more partition's, the rising order being the caller's duty.
void join_partition(float* total, const float* part, int64_t wide) {
  const float most = total[0] > part[0] ? total[0] : part[0];
  const f32x16 base = set1(most == -__builtin_inff() ? 0.0f : most);
  const f32x16 old_factor = exp(sub(set1(total[0]), base)), new_factor = exp(sub(set1(part[0]), base));
  float l[16];
  store(l, fma(set1(total[1]), old_factor, mul(set1(part[1]), new_factor)));
  total[0] = most;
  total[1] = l[0];
  for (int64_t d = 16; d < 16 + wide; d += 16) {
    store(total + d, fma(load(total + d), old_factor, mul(load(part + d), new_factor)));
  }
}

ACCEL_INLINE void clear_state(float* total, int64_t wide) {
  total[0] = -__builtin_inff();
  total[1] = 0.0f;
  for (int64_t d = 16; d < 16 + wide; d += 16) store(total + d, zero());
}

}  // namespace
}  // namespace accel::cpu
