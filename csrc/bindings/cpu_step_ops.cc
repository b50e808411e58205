// Step state.

#include "cpu_history.h"

namespace accel::py_bindings {
namespace {

void check_plan(const OpArgs& args, const cpu::PackStepArgs& a, int64_t slot_count) {
  if (!args.sees_values()) return;
  args.range(a.slots, a.requests, "slots", 0, slot_count, "the slots of last_token");
  if (a.query_start[0] != 0 || a.query_start[a.requests] != a.tokens_total) {
    args.fail("query_start must run from 0 to the " + std::to_string(a.tokens_total) + " tokens");
  }
  for (int64_t r = 0; r < a.requests; ++r) {
    const int64_t length = static_cast<int64_t>(a.query_start[r + 1]) - a.query_start[r];
    const std::string at = "[" + std::to_string(r) + "]";
    if (length < 1) args.fail("query_start" + at + " gives request " + std::to_string(r) + " no token");
    if (a.computed[r] < 0) args.fail("computed" + at + " is " + std::to_string(a.computed[r]) + "; it must be 0 or more");
    args.at_most(a.computed[r] + length, "computed plus the tokens of a request", kMostInt32);
    const int64_t end = a.computed[r] + length, first = a.computed[r] / a.block_size, last = (end - 1) / a.block_size;
    if (last >= a.table_stride) {
      args.fail("request " + std::to_string(r) + " needs " + std::to_string(last + 1) + " blocks for " + std::to_string(end) +
                " tokens; block_tables has " + std::to_string(a.table_stride) + " columns");
    }
    for (int64_t i = first; i <= last; ++i) {
      if (a.block_tables[r * a.table_stride + i] < 0) {
        args.fail("block_tables[" + std::to_string(r) + ", " + std::to_string(i) + "] is negative, and the step writes there");
      }
    }
  }
}

void pack_step(CpuOps&, StreamHandle& stream, py::handle input_ids, py::handle positions, py::handle slot_mapping,
               py::handle kv_lens, py::handle last_rows, py::handle tokens, py::handle slots, py::handle query_start,
               py::handle computed, py::handle block_tables, py::handle last_token, int64_t block_size) {
  const OpArgs args("pack_step");
  args.at_most(block_size, "block_size", kMostInt32);
  if (block_size < 1) args.fail("block_size is " + std::to_string(block_size) + "; it must be 1 or more");
  const Tensor token = args.in(tokens, "tokens", {kInt32}, 1, 1), slot = args.in(slots, "slots", {kInt32}, 1, 1);
  const int64_t count = token.shape[0], requests = slot.shape[0];
  args.contiguous(token, "tokens");
  args.contiguous(slot, "slots");
  const Tensor start = vector_in(args, query_start, "query_start", kInt32, requests + 1, "requests + 1"),
               done = vector_in(args, computed, "computed", kInt32, requests, "requests");
  const Tensor tables = args.in(block_tables, "block_tables", {kInt32}, 2, 2),
               last = args.in(last_token, "last_token", {kInt32}, 1, 1);
  args.dim(tables, "block_tables", 0, requests, "requests");
  args.contiguous(tables, "block_tables");
  args.contiguous(last, "last_token");
  const Tensor ids = vector_out(args, input_ids, "input_ids", kInt32, count, "tokens"),
               at = vector_out(args, positions, "positions", kInt32, count, "tokens"),
               mapping = vector_out(args, slot_mapping, "slot_mapping", kInt64, count, "tokens"),
               lens = vector_out(args, kv_lens, "kv_lens", kInt32, requests, "requests"),
               rows = vector_out(args, last_rows, "last_rows", kInt32, requests, "requests");
  const cpu::PackStepArgs a{requests,
                            count,
                            block_size,
                            tables.shape[1],
                            token.as<int32_t>(),
                            slot.as<int32_t>(),
                            start.as<int32_t>(),
                            done.as<int32_t>(),
                            tables.as<int32_t>(),
                            last.as<int32_t>(),
                            ids.as<int32_t>(),
                            at.as<int32_t>(),
                            mapping.as<int64_t>(),
                            lens.as<int32_t>(),
                            rows.as<int32_t>()};
  check_plan(args, a, last.shape[0]);
  Accesses accesses(args, stream.device->runtime);
  const std::pair<const char*, const Tensor&> outputs[] = {
      {"input_ids", ids}, {"positions", at}, {"slot_mapping", mapping}, {"kv_lens", lens}, {"last_rows", rows}};
  for (const auto& [name, output] : outputs) accesses.add(name, output, ACCEL_WRITE);
  const std::pair<const char*, const Tensor&> inputs[] = {{"tokens", token},  {"slots", slot},          {"query_start", start},
                                                          {"computed", done}, {"block_tables", tables}, {"last_token", last}};
  for (const auto& [name, input] : inputs) accesses.add(name, input, ACCEL_READ);
  launch_compute(stream, args.op(), accesses.data(), accesses.size(), [a] { cpu::pack_step(a); });
}

void stop_check(CpuOps&, StreamHandle& stream, py::handle reason, py::handle sampled, py::handle generated,
                py::handle max_tokens, py::handle min_tokens, py::handle ignore_eos, py::handle eos, py::handle history,
                py::handle slots, py::handle lengths, py::handle row_start, py::handle word_start, py::handle words) {
  const OpArgs args("stop_check");
  const Tensor token = args.in(sampled, "sampled", {kInt32}, 1, 1);
  args.contiguous(token, "sampled");
  const int64_t count = token.shape[0];
  const char* what = "rows of sampled";
  const Tensor out = vector_out(args, reason, "reason", kInt32, count, what),
               made = vector_in(args, generated, "generated", kInt32, count, what),
               most = vector_in(args, max_tokens, "max_tokens", kInt32, count, what),
               least = vector_in(args, min_tokens, "min_tokens", kInt32, count, what),
               ignore = vector_in(args, ignore_eos, "ignore_eos", kUInt8, count, what);
  const Tensor ends = args.in(eos, "eos", {kInt32}, 1, 1);
  args.contiguous(ends, "eos");
  const HistoryIn past(args, history, slots, nullptr, lengths, count, what);
  const WordsIn lists(args, row_start, word_start, words, count, kMostInt32 + 1, "a token id");
  const cpu::StopArgs a{out.as<int32_t>(),   token.as<int32_t>(),  made.as<int32_t>(), most.as<int32_t>(),
                        least.as<int32_t>(), ignore.as<uint8_t>(), ends.as<int32_t>(), count,
                        ends.shape[0],       past.view(),          lists.view()};
  Accesses accesses(args, stream.device->runtime);
  accesses.add("reason", out, ACCEL_WRITE);
  const std::pair<const char*, const Tensor&> inputs[] = {{"sampled", token},    {"generated", made},    {"max_tokens", most},
                                                          {"min_tokens", least}, {"ignore_eos", ignore}, {"eos", ends}};
  for (const auto& [name, input] : inputs) accesses.add(name, input, ACCEL_READ);
  past.declare(accesses);
  lists.declare(accesses);
  launch_compute(stream, args.op(), accesses.data(), accesses.size(), [a] { cpu::stop_check(a); });
}

void write_history(CpuOps&, StreamHandle& stream, py::handle history, py::handle slots, py::handle positions,
                   py::handle tokens) {
  const OpArgs args("write_history");
  const Tensor past = args.out(history, "history", {kInt32}, 2, 2), slot = args.in(slots, "slots", {kInt32}, 1, 1);
  args.contiguous(past, "history");
  args.contiguous(slot, "slots");
  const int64_t count = slot.shape[0];
  const char* what = "number of slots";
  const Tensor place = vector_in(args, positions, "positions", kInt32, count, what),
               token = vector_in(args, tokens, "tokens", kInt32, count, what);
  args.range(slot.as<int32_t>(), count, "slots", 0, past.shape[0], "the slots of history");
  args.range(place.as<int32_t>(), count, "positions", 0, past.shape[1], "the tokens a slot of history holds");
  Accesses accesses(args, stream.device->runtime);
  accesses.add("history", past, ACCEL_READ_WRITE);
  const std::pair<const char*, const Tensor&> inputs[] = {{"slots", slot}, {"positions", place}, {"tokens", token}};
  for (const auto& [name, input] : inputs) accesses.add(name, input, ACCEL_READ);
  launch_compute(stream, args.op(), accesses.data(), accesses.size(),
                 [h = past.as<int32_t>(), stride = past.shape[1], s = slot.as<int32_t>(), p = place.as<int32_t>(),
                  t = token.as<int32_t>(), count] { cpu::write_history(h, stride, s, p, t, count); });
}

void update_slots(CpuOps&, StreamHandle& stream, py::handle last_token, py::handle slots, py::handle sampled) {
  const OpArgs args("update_slots");
  const Tensor last = args.out(last_token, "last_token", {kInt32}, 1, 1), slot = args.in(slots, "slots", {kInt32}, 1, 1);
  args.contiguous(last, "last_token");
  args.contiguous(slot, "slots");
  const int64_t count = slot.shape[0];
  const Tensor token = vector_in(args, sampled, "sampled", kInt32, count, "number of slots");
  args.range(slot.as<int32_t>(), count, "slots", 0, last.shape[0], "the slots of last_token");
  Accesses accesses(args, stream.device->runtime);
  accesses.add("last_token", last, ACCEL_READ_WRITE);
  accesses.add("slots", slot, ACCEL_READ);
  accesses.add("sampled", token, ACCEL_READ);
  launch_compute(
      stream, args.op(), accesses.data(), accesses.size(),
      [l = last.as<int32_t>(), s = slot.as<int32_t>(), t = token.as<int32_t>(), count] { cpu::update_slots(l, s, t, count); });
}

}  // namespace

void bind_step_ops(OpsClass& cls) {
  cls.def("pack_step", &pack_step, py::arg("stream"), py::arg("input_ids"), py::arg("positions"), py::arg("slot_mapping"),
          py::arg("kv_lens"), py::arg("last_rows"), py::arg("tokens"), py::arg("slots"), py::arg("query_start"),
          py::arg("computed"), py::arg("block_tables"), py::arg("last_token"), py::kw_only(), py::arg("block_size"));
  cls.def("stop_check", &stop_check, py::arg("stream"), py::arg("reason"), py::arg("sampled"), py::arg("generated"),
          py::arg("max_tokens"), py::arg("min_tokens"), py::arg("ignore_eos"), py::arg("eos"), py::arg("history"),
          py::arg("slots"), py::arg("lengths"), py::arg("row_start"), py::arg("word_start"), py::arg("words"));
  cls.def("write_history", &write_history, py::arg("stream"), py::arg("history"), py::arg("slots"), py::arg("positions"),
          py::arg("tokens"));
  cls.def("update_slots", &update_slots, py::arg("stream"), py::arg("last_token"), py::arg("slots"), py::arg("sampled"));
}

}  // namespace accel::py_bindings
