// Selection for sampling: top-k, top-p, min-p, and the Gumbel-max pick. The exact definition is the reference of the `sample`
// op.
//
// Invariant: which tokens are kept and which one wins depends on the row's logits and parameters only; order is
// (x falling, id rising) everywhere, and sums for top-p are float64 in one order.
#include "sample.h"

#include <algorithm>
#include <limits>

#include "scratch.h"
#include "select.h"
#include "thread_pool.h"

namespace accel::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLowest = std::numeric_limits<float>::lowest();
constexpr float kReach = 17.0f;  // more than the largest noise, 16.7, and the rounding of scores
constexpr float kNoBound = std::numeric_limits<float>::quiet_NaN();

struct Row {
  const SampleKernels* kernels;
  int64_t vocab;
  float* x;               // [vocab]; the largest is 0
  float* w;               // [vocab]
  int32_t* ids;           // [vocab]
  Candidate* candidates;  // [vocab]
};

int64_t take(const Row& row, int64_t at, float low, float high) {
  const int64_t found = row.kernels->collect(row.ids, row.x, row.vocab, low, high);
  for (int64_t i = 0; i < found; ++i) row.candidates[at + i] = {row.x[row.ids[i]], row.ids[i]};
  return found;
}

double weight_of(const Row& row, int64_t begin, int64_t end) {
  double sum = 0.0;
  for (int64_t i = begin; i < end; ++i) sum += static_cast<double>(row.w[row.candidates[i].id]);
  return sum;
}

// The shortest prefix, in order, of candidates [begin, end) that brings `running` to `target`; end if none does. Halves are
// set in order and weighed, so that only the last few are sorted.
int64_t cut_prefix(const Row& row, int64_t begin, int64_t end, double target, double running) {
  while (end - begin > 64) {
    const int64_t middle = begin + (end - begin) / 2;
    std::nth_element(row.candidates + begin, row.candidates + middle, row.candidates + end, comes_before);
    const double half = weight_of(row, begin, middle);
    if (running + half >= target) {
      end = middle;
    } else {
      begin = middle;
      running += half;
    }
  }
  std::sort(row.candidates + begin, row.candidates + end, comes_before);
  for (int64_t i = begin; i < end; ++i) {
    running += static_cast<double>(row.w[row.candidates[i].id]);
    if (running >= target) return i + 1;
  }
  return end;
}

// Top-p over candidates [0, count) that top-k left.
int64_t top_p_of_kept(const Row& row, int64_t count, double top_p) {
  std::sort(row.candidates, row.candidates + count, comes_before);
  for (int64_t i = 0; i < count; ++i) {
    const int32_t id = row.candidates[i].id;
    row.kernels->weights(row.w + id, row.x + id, 1);
  }
  return cut_prefix(row, 0, count, top_p * weight_of(row, 0, count), 0.0);
}

// Top-p over the whole vocabulary: bands of falling x are taken whole while they fall short; the band that does not is cut.
int64_t top_p_of_all(const Row& row, double top_p) {
  row.kernels->weights(row.w, row.x, row.vocab);
  const double target = top_p * sum_weights(row.w, row.vocab);
  double running = 0.0;
  int64_t count = 0;
  float high = kNoBound;
  for (float width = 2.0f; width <= 256.0f; width *= 2.0f) {
    const float low = width < 256.0f ? -width : kLowest;
    const int64_t end = count + take(row, count, low, high);
    const double band = weight_of(row, count, end);
    if (running + band >= target) return cut_prefix(row, count, end, target, running);
    running += band;
    count = end;
    high = low;
  }
  return count;
}

// The best of `best` and candidates [0, count), by Gumbel-max.
Candidate pick(const Row& row, int64_t count, uint64_t seed, int64_t position, Candidate best) {
  constexpr int64_t kChunk = 256;
  float x[kChunk], scores[kChunk];
  int32_t ids[kChunk];
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
  return best;
}

// All x >= border, skipping what cannot win: u lies in [2^-24, 1 - 2^-24], so the noise is below 16.7, and a token that far
// below a score already reached is out.
Candidate pick_of_all(const Row& row, float border, uint64_t seed, int64_t position) {
  const float high = std::max(-4.0f, border);
  const Candidate best = pick(row, take(row, 0, high, kNoBound), seed, position, {-kInfinity, -1});
  const float low = std::max(best.x - kReach, border);
  return low < high ? pick(row, take(row, 0, low, high), seed, position, best) : best;
}

// Candidates [0, count) with x >= border, to the front.
int64_t at_least(const Row& row, int64_t count, float border) {
  Candidate* const begin = row.candidates;
  return std::remove_if(begin, begin + count, [=](const Candidate& c) { return c.x < border; }) - begin;
}

int32_t sample_row(const SampleArgs& args, int64_t r, Row& row) {
  const float* logits = args.logits + r * args.row_stride;
  const int32_t greedy = row.kernels->argmax_row(logits, args.vocab);
  // Nothing to pick, or plus infinity, beside which no noise counts.
  if (args.temperature[r] == 0.0f || greedy < 0 || logits[greedy] == kInfinity) return greedy;
  row.kernels->scale(row.x, logits, args.vocab, logits[greedy], args.temperature[r]);
  const bool cut = args.top_p[r] < 1.0f;
  const double top_p = static_cast<double>(args.top_p[r]);
  const float border = args.min_p[r] > 0.0f ? row.kernels->logarithm(args.min_p[r]) : -kInfinity;
  int64_t count;
  if (args.top_k[r] > 0 && args.top_k[r] < args.vocab) {
    count = select_top_k(*row.kernels, row.x, row.vocab, args.top_k[r], row.candidates);
    if (cut) count = top_p_of_kept(row, count, top_p);
  } else if (cut) {
    count = top_p_of_all(row, top_p);
  } else {
    return pick_of_all(row, border, args.seed[r], args.position[r]).id;
  }
  if (args.min_p[r] > 0.0f) count = at_least(row, count, border);
  return pick(row, count, args.seed[r], args.position[r], {-kInfinity, -1}).id;
}

}  // namespace

// Keeps up to 2k, cutting back to k when full, so one pass costs O(vocab).
int64_t select_top_k(const SampleKernels& kernels, const float* x, int64_t vocab, int64_t k, Candidate* candidates) {
  const int64_t capacity = std::min(2 * k, vocab);
  float threshold = -kInfinity;
  int64_t count = 0;
  for (int64_t i = kernels.next_above(x, 0, vocab, threshold); i < vocab; i = kernels.next_above(x, i + 1, vocab, threshold)) {
    candidates[count++] = {x[i], static_cast<int32_t>(i)};
    if (count == capacity) {
      std::nth_element(candidates, candidates + (k - 1), candidates + count, comes_before);
      count = k;
      threshold = candidates[k - 1].x;  // ids still to come lose against it when equal
    }
  }
  if (count > k) {
    std::nth_element(candidates, candidates + (k - 1), candidates + count, comes_before);
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
