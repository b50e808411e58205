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

void stop_check(const StopArgs& args) {
  for (int64_t r = 0; r < args.rows; ++r) {
    Stop reason = args.generated[r] >= args.max_tokens[r] ? Stop::kLength : Stop::kNone;
    for (int64_t e = 0; e < args.eos_count && args.ignore_eos[r] == 0; ++e) {
      if (args.sampled[r] == args.eos[e]) reason = Stop::kEos;
    }
    args.out[r] = static_cast<int32_t>(reason);
  }
}

void update_slots(int32_t* last_token, const int32_t* slots, const int32_t* sampled, int64_t rows) {
  for (int64_t r = 0; r < rows; ++r) {
    if (sampled[r] >= 0) last_token[slots[r]] = sampled[r];
  }
}

}  // namespace accel::cpu
