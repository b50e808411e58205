// Step state: from a plan to the arrays the ops read, and from sampled tokens back. Integers, one short loop each.
#include "kernels.h"

namespace accel::cpu {

void pack_step(const PackStepArgs& args) {
  for (int64_t r = 0; r < args.requests; ++r) {
    const int32_t begin = args.query_start[r], end = args.query_start[r + 1];
    const int32_t* table = args.block_tables + r * args.table_stride;
    for (int32_t i = begin; i < end; ++i) {
      const int64_t position = args.computed[r] + (i - begin);
      args.input_ids[i] = args.tokens[i] == kLastSampled ? args.last_token[args.slots[r]] : args.tokens[i];
      args.positions[i] = static_cast<int32_t>(position);
      args.slot_mapping[i] = table[position / args.block_size] * args.block_size + position % args.block_size;
    }
    args.kv_lens[r] = args.computed[r] + (end - begin);
    args.last_rows[r] = end - 1;
  }
}

namespace {

bool is_end_token(const StopArgs& args, int32_t token) {
  for (int64_t e = 0; e < args.eos_count; ++e) {
    if (token == args.eos[e]) return true;
  }
  return false;
}

// Whether the sampled token completes a word of row r that was generated as a whole.
bool completes_word(const StopArgs& args, int64_t r) {
  for (int32_t w = args.lists.row_start[r]; w < args.lists.row_start[r + 1]; ++w) {
    const int32_t* const word = args.lists.words + args.lists.word_start[w];
    const int64_t before = args.lists.word_start[w + 1] - args.lists.word_start[w] - 1;
    if (before >= args.generated[r] || word[before] != args.sampled[r]) continue;
    if (before == 0 || ends_with(args.history.row(r), args.history.lengths[r], word, before)) return true;
  }
  return false;
}

Stop stop_reason(const StopArgs& args, int64_t r) {
  if (args.sampled[r] >= 0 && args.generated[r] >= args.min_tokens[r]) {
    if (args.ignore_eos[r] == 0 && is_end_token(args, args.sampled[r])) return Stop::kEos;
    if (completes_word(args, r)) return Stop::kWord;
  }
  return args.generated[r] >= args.max_tokens[r] ? Stop::kLength : Stop::kNone;
}

}  // namespace

void stop_check(const StopArgs& args) {
  for (int64_t r = 0; r < args.rows; ++r) args.out[r] = static_cast<int32_t>(stop_reason(args, r));
}

void write_history(int32_t* history, int64_t stride, const int32_t* slots, const int32_t* positions, const int32_t* tokens,
                   int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    if (tokens[i] >= 0) history[slots[i] * stride + positions[i]] = tokens[i];
  }
}

void update_slots(int32_t* last_token, const int32_t* slots, const int32_t* sampled, int64_t rows) {
  for (int64_t r = 0; r < rows; ++r) {
    if (sampled[r] >= 0) last_token[slots[r]] = sampled[r];
  }
}

}  // namespace accel::cpu
