// The arithmetic of sampling over a vocabulary: argmax, temperature, scans by threshold, weights, Gumbel noise, a logarithm
// (see sample.h).
#pragma once

#include "kernels.h"
#include "math.inl"
#include "sample.h"
#include "sizes.inl"
#include "thread_pool.h"

namespace accel::cpu {
namespace {

ACCEL_INLINE f32x16 lowest() { return set1(-__builtin_inff()); }

// n lanes, minus infinity after them.
ACCEL_INLINE f32x16 load_or_lowest(const float* p, int64_t n) {
  if (n >= 16) return load(p);
  return select(lanes_between(0, n), load_part(p, n), lowest());
}

int32_t argmax_row(const float* logits, int64_t n) {
  f32x16 most[4] = {lowest(), lowest(), lowest(), lowest()};
  int64_t i = 0;
  for (; i + 64 <= n; i += 64) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) most[j] = max(load(logits + i + 16 * j), most[j]);  // a NaN leaves the running maximum
  }
  for (; i < n; i += 16) most[0] = max(load_or_lowest(logits + i, n - i), most[0]);
  const float best = reduce_max(max(max(most[0], most[1]), max(most[2], most[3])));
  if (best == -__builtin_inff()) return -1;
  for (i = 0;; i += 16) {  // ends: the maximum is there
    const uint32_t found = bits(equal(load_or_lowest(logits + i, n - i), set1(best)));
    if (found != 0) return static_cast<int32_t>(i) + __builtin_ctz(found);
  }
}

void argmax(ThreadPool& pool, int32_t* out, const float* logits, int64_t rows, int64_t vocab, int64_t row_stride) {
  pool.parallel_for(rows, items_per_chunk(vocab), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) out[row] = argmax_row(logits + row * row_stride, vocab);
  });
}

void scale_logits(float* x, const float* logits, int64_t n, float most, float temperature) {
  for (int64_t i = 0; i < n; i += 16) {
    const f32x16 v = div(sub(load_or_lowest(logits + i, n - i), set1(most)), set1(temperature));
    store_part(x + i, select(not_nan(v), v, lowest()), smaller(n - i, 16));
  }
}

int64_t collect_ids(int32_t* ids, const float* x, int64_t n, float low, float high) {
  int64_t count = 0;
  for (int64_t i = 0; i < n; i += 16) {
    const f32x16 v = load_part(x + i, smaller(n - i, 16));
    uint32_t found = bits(greater_equal(v, set1(low))) & ~bits(greater_equal(v, set1(high)));
    if (n - i < 16) found &= (1u << (n - i)) - 1u;
    for (; found != 0; found &= found - 1) ids[count++] = static_cast<int32_t>(i) + __builtin_ctz(found);
  }
  return count;
}

int64_t next_above(const float* x, int64_t from, int64_t n, float threshold) {
  for (int64_t i = from; i < n; i += 16) {
    const uint32_t found = bits(greater(load_or_lowest(x + i, n - i), set1(threshold)));
    if (found != 0) return i + __builtin_ctz(found);
  }
  return n;
}

int32_t count_above(const float* x, int64_t n, float threshold) {
  int32_t count = 0;
  for (int64_t i = 0; i < n; i += 16) {
    count += __builtin_popcount(bits(greater(load_or_lowest(x + i, n - i), set1(threshold))));
  }
  return count;
}

float logarithm(float x) {
  float lanes[16];
  store(lanes, log(set1(x)));
  return lanes[0];
}

void exp_weights(float* w, const float* x, int64_t n) {
  for (int64_t i = 0; i < n; i += 16) {
    const int64_t count = smaller(n - i, 16);
    store_part(w + i, exp(load_part(x + i, count)), count);
  }
}

struct PhiloxState {
  u32x16 word[4];
};

ACCEL_INLINE PhiloxState philox(PhiloxState c, uint64_t seed) {
  u32x16 key0 = set1_u32(static_cast<uint32_t>(seed)), key1 = set1_u32(static_cast<uint32_t>(seed >> 32));
  for (int round = 0; round < 10; ++round) {
    u32x16 high0, low0, high1, low1;
    mul_wide(c.word[0], set1_u32(0xD2511F53u), high0, low0);
    mul_wide(c.word[2], set1_u32(0xCD9E8D57u), high1, low1);
    c.word[0] = xor_u32(xor_u32(high1, c.word[1]), key0);
    c.word[1] = low1;
    c.word[2] = xor_u32(xor_u32(high0, c.word[3]), key1);
    c.word[3] = low0;
    key0 = add_u32(key0, set1_u32(0x9E3779B9u));
    key1 = add_u32(key1, set1_u32(0xBB67AE85u));
  }
  return c;
}

// Lanes are ids, each with its own counter; of the four words a lane keeps word id % 4.
ACCEL_INLINE f32x16 gumbel_noise(u32x16 ids, uint64_t seed, uint64_t position) {
  PhiloxState counter;
  counter.word[0] = set1_u32(static_cast<uint32_t>(position));
  counter.word[1] = set1_u32(static_cast<uint32_t>(position >> 32));
  counter.word[2] = shift_right<2>(ids);
  counter.word[3] = set1_u32(0);
  const PhiloxState random = philox(counter, seed);
  const f32x16 which = to_f32(and_u32(ids, set1_u32(3)));
  f32x16 word = as_f32(random.word[0]);
  for (int i = 1; i < 4; ++i) word = select(equal(which, set1(static_cast<float>(i))), as_f32(random.word[i]), word);
  const f32x16 u = mul(add(to_f32(shift_right<9>(as_u32(word))), set1(0.5f)), set1(0x1p-23f));
  return sub(zero(), log(sub(zero(), log(u))));
}

void gumbel_scores(float* scores, const float* x, const int32_t* ids, int64_t n, uint64_t seed, int64_t position) {
  for (int64_t i = 0; i < n; i += 16) {
    const int64_t count = smaller(n - i, 16);
    uint32_t lanes[16] = {};
    std::memcpy(lanes, ids + i, static_cast<size_t>(count) * sizeof lanes[0]);
    const f32x16 noise = gumbel_noise(load_u32(lanes), seed, static_cast<uint64_t>(position));
    store_part(scores + i, add(load_part(x + i, count), noise), count);
  }
}

const SampleKernels kSampleKernels = {argmax_row,  scale_logits, collect_ids,   next_above,
                                      count_above, exp_weights,  gumbel_scores, logarithm};

void sample(ThreadPool& pool, const SampleArgs& args) { sample_rows(pool, args, kSampleKernels); }

void logprobs(ThreadPool& pool, const LogprobArgs& args) { logprob_rows(pool, args, kSampleKernels); }

}  // namespace
}  // namespace accel::cpu
