// The order of candidates, the k largest, and the sum of weights: what sampling and log probabilities share.
//
// For baseline units only (sample.cc, logprobs.cc): an inline function compiled for a wider instruction set could be the copy
// the linker keeps (see simd.h).
#pragma once

#include "sample.h"

namespace accel::cpu {

struct Candidate {
  float x;
  int32_t id;
};

// The order of everything that is picked or listed.
inline bool comes_before(const Candidate& a, const Candidate& b) { return a.x > b.x || (a.x == b.x && a.id < b.id); }

// The k largest of x [vocab] to candidates [0, k), unordered; fewer where fewer are above minus infinity. How many.
// Room for min(2k, vocab) candidates is needed; 1 <= k <= vocab.
int64_t select_top_k(const SampleKernels& kernels, const float* x, int64_t vocab, int64_t k, Candidate* candidates);

// Sum in float64: lane j adds elements j mod 8 in rising order, then the lanes are added as a fixed tree.
double sum_weights(const float* w, int64_t n);

}  // namespace accel::cpu
