// Sampling and log probabilities are split in two: selection (sorting, heaps, the order of decisions) is compiled once for the
// baseline machine (sample.cc, logprobs.cc); the arithmetic over a whole vocabulary comes from each instruction set as this
// small table.
//
// Why: selection uses std:: algorithms, and a template of the standard library compiled for AVX-512 could be the copy the
// linker keeps for everybody (see simd.h).
#pragma once

#include "kernels.h"

namespace accel::cpu {

struct SampleKernels {
  // As KernelTable::argmax, one row.
  int32_t (*argmax_row)(const float* logits, int64_t n);
  // x = (logits - most) / temperature, NaN becoming minus infinity; most is the largest logit, and finite.
  void (*scale)(float* x, const float* logits, int64_t n, float most, float temperature);
  // Ids with low <= x and not x >= high (NaN: no upper bound), rising; how many.
  int64_t (*collect)(int32_t* ids, const float* x, int64_t n, float low, float high);
  // The first id >= from with x > threshold, or n.
  int64_t (*next_above)(const float* x, int64_t from, int64_t n, float threshold);
  // How many x > threshold.
  int32_t (*count_above)(const float* x, int64_t n, float threshold);
  // w = exp(x); w may be x.
  void (*weights)(float* w, const float* x, int64_t n);
  // score = x - log(-log(u)), u from Philox 4x32-10 (Salmon et al. 2011): key seed, counter (position, id / 4), word id % 4.
  void (*gumbel)(float* scores, const float* x, const int32_t* ids, int64_t n, uint64_t seed, int64_t position);
  // log(x) of one number.
  float (*logarithm)(float x);
};

void sample_rows(ThreadPool& pool, const SampleArgs& args, const SampleKernels& kernels);
void logprob_rows(ThreadPool& pool, const LogprobArgs& args, const SampleKernels& kernels);

}  // namespace accel::cpu
