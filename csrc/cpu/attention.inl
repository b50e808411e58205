// Attention over pages: how the work is shared out. The arithmetic, and why sharing cannot change it, is in attention_part.inl.
//
// A row block is up to 64 rows (queries x heads) of one kv head of one request. With enough of them, a thread takes a block
// through all its partitions. With few (decode), block and partition make a task, states go through memory, and a second pass
// joins them.
#pragma once

#include "attention_part.inl"
#include "scratch.h"
#include "thread_pool.h"

namespace accel::cpu {
namespace {

constexpr int64_t kMostSplitFloats = int64_t{1} << 24;  // 64 MiB of states at most; beyond, blocks stay whole

struct AttentionPlan {
  const AttentionArgs* args;
  const int64_t* first_block;  // [requests + 1] prefix sums of row blocks, all kv heads together
  int64_t queries;             // queries of a row block
  int64_t blocks, partitions, group, dim, wide, most_rows;
};

ACCEL_INLINE RowBlock row_block(const AttentionPlan& plan, int64_t index) {
  const AttentionArgs& args = *plan.args;
  int64_t low = 0, high = args.requests - 1;
  while (low < high) {  // the last request that begins at or before `index`
    const int64_t middle = (low + high + 1) / 2;
    if (plan.first_block[middle] <= index) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  const int64_t length = args.query_start[low + 1] - args.query_start[low];
  const int64_t chunks = divide_up(length, plan.queries);
  // Later chunks see more tokens: they come first, so that the longest work is not left for the end.
  const int64_t within = index - plan.first_block[low];
  const int64_t first = (chunks - 1 - within / args.kv.kv_heads) * plan.queries;
  RowBlock block;
  block.request = low;
  block.kv_head = within % args.kv.kv_heads;
  block.token = args.query_start[low] + first;
  block.queries = smaller(plan.queries, length - first);
  block.group = plan.group;
  block.position = args.kv_lens[low] - length + first;
  block.window = args.window;
  return block;
}

ACCEL_INLINE int64_t align16(int64_t floats) { return divide_up(floats, 16) * 16; }

// The chunk's buffers; with_states adds two states a row.
ACCEL_INLINE PartScratch part_scratch(const AttentionPlan& plan, bool with_states, float** states) {
  const int64_t rows = plan.most_rows, dim = plan.dim, wide = plan.wide;
  const int64_t q = align16(rows * dim), values = kPartition * wide, scores = rows * kPartition;
  const int64_t state = with_states ? 2 * rows * state_stride(wide) : 0;
  auto* base = static_cast<float*>(scratch(Scratch::kLocal, static_cast<size_t>(q + values + scores + state) * 4));
  *states = base + q + values + scores;
  return {base, base + q, base + q, base + q + values, dim, wide};
}

ACCEL_INLINE void load_queries(const AttentionPlan& plan, const RowBlock& block, const PartScratch& s) {
  const ConstRows& q = plan.args->q;
  for (int64_t row = 0; row < block.rows(); ++row) {
    const int64_t token = block.token + row / block.group, head = block.kv_head * block.group + row % block.group;
    std::memcpy(s.q + row * s.dim, q.data + token * q.row_stride + head * q.head_stride, static_cast<size_t>(s.dim) * 4);
  }
}

ACCEL_INLINE void store_row(const AttentionPlan& plan, const RowBlock& block, int64_t row, const float* total) {
  const Rows& out = plan.args->out;
  const int64_t token = block.token + row / block.group, head = block.kv_head * block.group + row % block.group;
  float* to = out.data + token * out.row_stride + head * out.head_stride;
  const f32x16 sum = set1(total[1]);
  for (int64_t d = 0; d < plan.dim; d += 16) store_part(to + d, div(load(total + 16 + d), sum), smaller(plan.dim - d, 16));
}

ACCEL_INLINE int64_t first_partition(const RowBlock& block) {
  return block.window > 0 ? larger(0, block.position - block.window + 1) / kPartition : 0;
}
ACCEL_INLINE int64_t last_partition(const RowBlock& block) { return (block.position + block.queries - 1) / kPartition + 1; }

ACCEL_INLINE bool sees(const RowBlock& block, int64_t row, int64_t part) {
  const Span seen = visible(block, row, part * kPartition);
  return seen.first < seen.last;
}

template <Elem E>
void attend_whole_blocks(ThreadPool& pool, const AttentionPlan& plan) {
  pool.parallel_for(plan.blocks, 1, [&](int64_t begin, int64_t end) {
    float* states;
    const PartScratch s = part_scratch(plan, true, &states);
    const int64_t stride = state_stride(plan.wide);
    float* totals = states + plan.most_rows * stride;
    for (int64_t index = begin; index < end; ++index) {
      const RowBlock block = row_block(plan, index);
      load_queries(plan, block, s);
      for (int64_t row = 0; row < block.rows(); ++row) clear_state(totals + row * stride, plan.wide);
      for (int64_t part = first_partition(block); part < last_partition(block); ++part) {
        attend_partition<E>(*plan.args, block, part, s, states);
        for (int64_t row = 0; row < block.rows(); ++row) {
          if (sees(block, row, part)) join_partition(totals + row * stride, states + row * stride, plan.wide);
        }
      }
      for (int64_t row = 0; row < block.rows(); ++row) store_row(plan, block, row, totals + row * stride);
    }
  });
}

template <Elem E>
void attend_split_blocks(ThreadPool& pool, const AttentionPlan& plan, float* states) {
  const int64_t stride = state_stride(plan.wide), block_stride = plan.most_rows * stride;
  pool.parallel_for(plan.blocks * plan.partitions, 1, [&](int64_t begin, int64_t end) {
    float* unused;
    const PartScratch s = part_scratch(plan, false, &unused);
    for (int64_t task = begin; task < end; ++task) {
      const RowBlock block = row_block(plan, task / plan.partitions);
      const int64_t part = task % plan.partitions;
      if (part < first_partition(block) || part >= last_partition(block)) continue;
      load_queries(plan, block, s);
      attend_partition<E>(*plan.args, block, part, s, states + task * block_stride);
    }
  });
  pool.parallel_for(plan.blocks * plan.most_rows, items_per_chunk(plan.partitions * stride), [&](int64_t begin, int64_t end) {
    float* total = static_cast<float*>(scratch(Scratch::kLocal, static_cast<size_t>(stride) * 4));
    for (int64_t i = begin; i < end; ++i) {
      const int64_t index = i / plan.most_rows, row = i % plan.most_rows;
      const RowBlock block = row_block(plan, index);
      if (row >= block.rows()) continue;
      clear_state(total, plan.wide);
      for (int64_t part = first_partition(block); part < last_partition(block); ++part) {
        const float* state = states + (index * plan.partitions + part) * block_stride + row * stride;
        if (sees(block, row, part)) join_partition(total, state, plan.wide);
      }
      store_row(plan, block, row, total);
    }
  });
}

template <Elem E>
void attention_elem(ThreadPool& pool, const AttentionArgs& args) {
  AttentionPlan plan;
  plan.args = &args;
  plan.group = args.q.heads / args.kv.kv_heads;
  plan.dim = args.kv.dim;
  plan.wide = divide_up(plan.dim, kPanel) * kPanel;
  plan.queries = larger(1, kAttentionRows / plan.group);
  int64_t longest_query = 0, longest_kv = 0;
  for (int64_t r = 0; r < args.requests; ++r) {
    longest_query = larger(longest_query, args.query_start[r + 1] - args.query_start[r]);
    longest_kv = larger(longest_kv, args.kv_lens[r]);
  }
  if (longest_query == 0) return;
  plan.queries = smaller(plan.queries, longest_query);
  plan.most_rows = plan.queries * plan.group;
  plan.partitions = divide_up(longest_kv, kPartition);

  const int64_t prefix_bytes = align16(2 * (args.requests + 1)) * 4;
  auto* prefix = static_cast<int64_t*>(scratch(Scratch::kShared, static_cast<size_t>(prefix_bytes)));
  const auto count_blocks = [&] {
    prefix[0] = 0;
    for (int64_t r = 0; r < args.requests; ++r) {
      const int64_t length = args.query_start[r + 1] - args.query_start[r];
      prefix[r + 1] = prefix[r] + divide_up(length, plan.queries) * args.kv.kv_heads;
    }
    plan.blocks = prefix[args.requests];
  };
  count_blocks();
  plan.first_block = prefix;
  const int64_t floats = plan.blocks * plan.partitions * plan.most_rows * state_stride(plan.wide);
  const bool split =
      pool.threads() > 1 && plan.blocks < 4 * pool.threads() && plan.partitions > 1 && floats <= kMostSplitFloats;
  if (!split) return attend_whole_blocks<E>(pool, plan);
  prefix = static_cast<int64_t*>(scratch(Scratch::kShared, static_cast<size_t>(prefix_bytes + floats * 4)));
  count_blocks();  // the buffer may have moved
  plan.first_block = prefix;
  attend_split_blocks<E>(pool, plan, reinterpret_cast<float*>(reinterpret_cast<std::byte*>(prefix) + prefix_bytes));
}

void attention(ThreadPool& pool, const AttentionArgs& args) {
  switch (args.kv.elem) {
    case Elem::kF32:
      return attention_elem<Elem::kF32>(pool, args);
    case Elem::kBF16:
      return attention_elem<Elem::kBF16>(pool, args);
    case Elem::kF16:
      return attention_elem<Elem::kF16>(pool, args);
  }
}

}  // namespace
}  // namespace accel::cpu
