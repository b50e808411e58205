// Selection for sampling: top-k, top-p, and the Gumbel-max pick. The exact definition is the reference of the `sample` op.
//
// Invariant: which tokens are kept and which one wins depends on the row's logits and parameters only; order is
// (x falling, id rising) everywhere, and sums for top-p are float64 in one order.
#include "sample.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "scratch.h"
#include "thread_pool.h"

namespace accel::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Candidate {
  float x;
  int32_t id;
};

bool comes_before(const Candidate& a, const Candidate& b) { return a.x > b.x || (a.x == b.x && a.id < b.id); }

struct Row {
  const SampleKernels* kernels;
  int64_t vocab;
  float most;             // the largest x
  float* x;               // [vocab]
  float* w;               // [vocab]
  int32_t* ids;           // [vocab]
  Candidate* candidates;  // [vocab]
};

int64_t take(const Row& row, int64_t at, float low, float high) {
  const int64_t found = row.kernels->collect(row.ids, row.x, row.vocab, low, high);
  for (int64_t i = 0; i < found; ++i) row.candidates[at + i] = {row.x[row.ids[i]], row.ids[i]};
  return found;
}

// The k largest to candidates [0, k), unordered. Keeps up to 2k, cutting back to k when full, so one pass costs O(vocab).
int64_t select_top_k(const Row& row, int64_t k) {
  const int64_t capacity = std::min(2 * k, row.vocab);
  Candidate* const begin = row.candidates;
  float threshold = -kInfinity;
  int64_t count = 0;
  for (int64_t i = row.kernels->next_above(row.x, 0, row.vocab, threshold); i < row.vocab;
       i = row.kernels->next_above(row.x, i + 1, row.vocab, threshold)) {
    begin[count++] = {row.x[i], static_cast<int32_t>(i)};
    if (count == capacity) {
      std::nth_element(begin, begin + (k - 1), begin + count, comes_before);
      count = k;
      threshold = begin[k - 1].x;  // ids still to come lose against it when equal
    }
  }
  if (count > k) {
    std::nth_element(begin, begin + (k - 1), begin + count, comes_before);
    count = k;
  }
  return count;
}

// Eight partial sums, so that the additions overlap; the order is fixed all the same.
double sum_weights(const float* w, int64_t n) {
  double lane[8] = {};
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (int j = 0; j < 8; ++j) lane[j] += static_cast<double>(w[i + j]);
  }
  for (int j = 0; i < n; ++i, ++j) lane[j] += static_cast<double>(w[i]);
  return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

// The shortest prefix of candidates [begin, end), already in order, that brings `running` to `target`; end if none does.
int64_t cut_prefix(const Row& row, int64_t begin, int64_t end, double target, double* running) {
  for (int64_t i = begin; i < end; ++i) {
    *running += static_cast<double>(row.w[row.candidates[i].id]);
    if (*running >= target) return i + 1;
  }
  return end;
}

// Top-p over candidates [0, count) that top-k left.
int64_t top_p_of_kept(const Row& row, int64_t count, double top_p) {
  std::sort(row.candidates, row.candidates + count, comes_before);
  double total = 0.0, running = 0.0;
  for (int64_t i = 0; i < count; ++i) {
    const Candidate& c = row.candidates[i];
    row.kernels->weights(row.w + c.id, row.x + c.id, 1, row.most);
    total += static_cast<double>(row.w[c.id]);
  }
  return cut_prefix(row, 0, count, top_p * total, &running);
}

// Top-p over the whole vocabulary, without sorting it: bands of falling x, each sorted only when the ones above fall short.
int64_t top_p_of_all(const Row& row, double top_p) {
  row.kernels->weights(row.w, row.x, row.vocab, row.most);
  const double target = top_p * sum_weights(row.w, row.vocab);
  double running = 0.0;
  int64_t count = 0;
  float high = std::numeric_limits<float>::quiet_NaN();
  for (float width = 2.0f; width <= 256.0f; width *= 2.0f) {
    const float low = width < 256.0f ? row.most - width : std::numeric_limits<float>::lowest();
    const int64_t found = take(row, count, low, high);
    std::sort(row.candidates + count, row.candidates + count + found, comes_before);
    const int64_t cut = cut_prefix(row, count, count + found, target, &running);
    if (cut < count + found || running >= target) return cut;
    count += found;
    high = low;
  }
  return count;
}

int32_t pick(const Row& row, int64_t count, uint64_t seed, int64_t position) {
  constexpr int64_t kChunk = 256;
  float x[kChunk], scores[kChunk];
  int32_t ids[kChunk];
  Candidate best{-kInfinity, -1};
  for (int64_t begin = 0; begin < count; begin += kChunk) {
    const int64_t n = std::min(kChunk, count - begin);
    for (int64_t i = 0; i < n; ++i) {
      x[i] = row.candidates[begin + i].x;
      ids[i] = row.candidates[begin + i].id;
    }
    row.kernels->gumbel(scores, x, ids, n, seed, position);
    for (int64_t i = 0; i < n; ++i) {
      const Candidate scored{scores[i], ids[i]};
      if (comes_before(scored, best)) best = scored;
    }
  }
  return best.x == -kInfinity ? -1 : best.id;
}

int32_t sample_row(const SampleArgs& args, int64_t r, Row& row) {
  const float* logits = args.logits + r * args.row_stride;
  if (args.temperature[r] == 0.0f) return row.kernels->argmax_row(logits, args.vocab);
  row.most = row.kernels->scale(row.x, logits, args.vocab, args.temperature[r]);
  if (row.most == -kInfinity) return -1;
  const double top_p = static_cast<double>(args.top_p[r]);
  int64_t count;
  if (args.top_k[r] > 0 && args.top_k[r] < args.vocab) {
    count = select_top_k(row, args.top_k[r]);
    if (top_p < 1.0) count = top_p_of_kept(row, count, top_p);
  } else if (top_p < 1.0) {
    count = top_p_of_all(row, top_p);
  } else {
    // u lies in [2^-24, 1 - 2^-24], so Gumbel noise in [-2.9, 16.7]: what is 20 below the largest x cannot win. The second
    // term covers the rounding of scores where x is huge.
    const float margin = 20.0f + std::fabs(row.most) * 0x1p-21f;
    count = take(row, 0, std::max(std::numeric_limits<float>::lowest(), row.most - margin),
                 std::numeric_limits<float>::quiet_NaN());
  }
  return pick(row, count, args.seed[r], args.position[r]);
}

}  // namespace

void sample_rows(ThreadPool& pool, const SampleArgs& args, const SampleKernels& kernels) {
  pool.parallel_for(args.rows, 1, [&](int64_t begin, int64_t end) {
    const auto vocab = static_cast<size_t>(args.vocab);
    auto* memory = static_cast<std::byte*>(scratch(Scratch::kLocal, vocab * (sizeof(Candidate) + 12)));
    Row row;
    row.kernels = &kernels;
    row.vocab = args.vocab;
    row.candidates = reinterpret_cast<Candidate*>(memory);
    row.x = reinterpret_cast<float*>(memory + vocab * sizeof(Candidate));
    row.w = row.x + vocab;
    row.ids = reinterpret_cast<int32_t*>(row.w + vocab);
    for (int64_t r = begin; r < end; ++r) args.out[r] = sample_row(args, r, row);
  });
}

}  // namespace accel::cpu
