// Log probabilities: one token's and its rank, and the best K. The exact definition is the reference of the `logprobs` op.
//
// Invariant: order is that of the logits, so rank and top agree even where two logits round to one log probability.
#include <algorithm>
#include <limits>

#include "sample.h"
#include "scratch.h"
#include "select.h"
#include "thread_pool.h"

namespace accel::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Memory {
  Candidate* candidates;  // [vocab]
  float* logits;          // [vocab], NaN made minus infinity
  float* w;               // [vocab]
};

// The best `top` of the row to candidates [0, top), in order. Tokens at minus infinity come last.
void best_of(const LogprobArgs& args, const SampleKernels& kernels, const Memory& memory) {
  int64_t count = select_top_k(kernels, memory.logits, args.vocab, args.top, memory.candidates);
  std::sort(memory.candidates, memory.candidates + count, comes_before);
  for (int64_t i = 0; i < args.vocab && count < args.top; ++i) {
    if (memory.logits[i] == -kInfinity) memory.candidates[count++] = {-kInfinity, static_cast<int32_t>(i)};
  }
}

void logprob_row(const LogprobArgs& args, const SampleKernels& kernels, int64_t r, const Memory& memory) {
  const float* const given = args.logits + r * args.row_stride;
  int32_t* const ids = args.top_ids + r * args.top;
  float* const values = args.top_values + r * args.top;
  args.value[r] = kNan;
  args.rank[r] = 0;
  std::fill_n(ids, args.top, -1);
  std::fill_n(values, args.top, kNan);
  const int32_t best = kernels.argmax_row(given, args.vocab);
  if (best < 0) return;
  const float most = given[best];
  kernels.scale(memory.logits, given, args.vocab, 0.0f, 1.0f);
  if (most == kInfinity) {
    for (int64_t i = 0; i < args.vocab; ++i) memory.w[i] = memory.logits[i] == most ? 1.0f : 0.0f;
  } else {
    kernels.scale(memory.w, given, args.vocab, most, 1.0f);
    kernels.weights(memory.w, memory.w, args.vocab);
  }
  const float log_sum = kernels.logarithm(static_cast<float>(sum_weights(memory.w, args.vocab)));
  const auto logprob = [&](float l) { return (l == most ? 0.0f : l - most) - log_sum; };
  if (args.tokens[r] >= 0) {
    const float l = memory.logits[args.tokens[r]];
    args.value[r] = logprob(l);
    args.rank[r] = 1 + kernels.count_above(memory.logits, args.vocab, l);
  }
  if (args.top == 0) return;
  best_of(args, kernels, memory);
  for (int64_t i = 0; i < args.top; ++i) {
    ids[i] = memory.candidates[i].id;
    values[i] = logprob(memory.candidates[i].x);
  }
}

}  // namespace

void logprob_rows(ThreadPool& pool, const LogprobArgs& args, const SampleKernels& kernels) {
  pool.parallel_for(args.rows, 1, [&](int64_t begin, int64_t end) {
    const auto vocab = static_cast<size_t>(args.vocab);
    auto* memory = static_cast<std::byte*>(scratch(Scratch::kLocal, vocab * (sizeof(Candidate) + 2 * sizeof(float))));
    auto* const logits = reinterpret_cast<float*>(memory + vocab * sizeof(Candidate));
    const Memory parts{reinterpret_cast<Candidate*>(memory), logits, logits + vocab};
    for (int64_t r = begin; r < end; ++r) logprob_row(args, kernels, r, parts);
  });
}

}  // namespace accel::cpu
