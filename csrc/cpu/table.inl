// One instruction set's kernels, as a constant table. Included once by each kernels_*.cc, which is compiled with that set's
// flags; everything it pulls in is internal to the unit, and the table is the only thing that leaves it.
#pragma once

#include "activation.inl"
#include "attention.inl"
#include "embedding.inl"
#include "kv.inl"
#include "linear.inl"
#include "norm.inl"
#include "pages.inl"
#include "rotary.inl"
#include "sampling.inl"

namespace accel::cpu {
namespace {

constexpr KernelTable make_table(const char* isa) {
  return {isa,         rms_norm, add_rms_norm, rotary,   write_kv,     attention,     silu_and_mul, linear,     embedding,
          gather_rows, argmax,   sample,       logprobs, pages_gather, pages_scatter, pages_copy,   pages_zero, pages_checksum};
}

}  // namespace
}  // namespace accel::cpu
