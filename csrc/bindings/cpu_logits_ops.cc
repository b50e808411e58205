// Rules on logits, sampling and log probabilities.

#include <algorithm>
#include <cmath>

#include "cpu_history.h"

namespace accel::py_bindings {
namespace {

enum class Use { kRead, kWrite };

Tensor logits_of(const OpArgs& args, py::handle object, Use use = Use::kRead) {
  const Tensor logits =
      use == Use::kWrite ? args.out(object, "logits", {kFloat32}, 2, 2) : args.in(object, "logits", {kFloat32}, 2, 2);
  args.last_contiguous(logits, "logits");
  args.at_most(logits.shape[1], "the vocabulary of logits", kMostInt32);
  if (logits.shape[1] < 1) args.fail("logits has shape " + logits.shape_text() + "; the vocabulary must have at least 1 token");
  return logits;
}

void argmax(CpuOps& ops, StreamHandle& stream, py::handle out_object, py::handle logits_object) {
  const OpArgs args("argmax");
  const Tensor logits = logits_of(args, logits_object);
  const Tensor out = vector_out(args, out_object, "out", kInt32, logits.shape[0], "rows of logits");
  Accesses accesses(args, stream.device->runtime);
  accesses.add("out", out, ACCEL_WRITE);
  accesses.add("logits", logits, ACCEL_READ);
  launch_compute(stream, args.op(), accesses.data(), accesses.size(),
                 [&pool = *ops.pool, kernel = ops.table->argmax, o = out.as<int32_t>(), logits] {
                   kernel(pool, o, logits.as<float>(), logits.shape[0], logits.shape[1], logits.strides[0]);
                 });
}

void check_sampling(const OpArgs& args, const cpu::SampleArgs& a) {
  if (!args.sees_values()) return;
  for (int64_t i = 0; i < a.rows; ++i) {
    const std::string at = "[" + std::to_string(i) + "] is ";
    if (!(a.temperature[i] >= 0) || a.temperature[i] > 3e38f) {
      args.fail("temperature" + at + std::to_string(a.temperature[i]) + "; it must be finite and 0 or more");
    }
    if (a.top_k[i] < 0) args.fail("top_k" + at + std::to_string(a.top_k[i]) + "; it must be 0 (off) or more");
    if (!(a.top_p[i] > 0 && a.top_p[i] <= 1)) args.fail("top_p" + at + std::to_string(a.top_p[i]) + "; it must be in (0, 1]");
    if (!(a.min_p[i] >= 0 && a.min_p[i] <= 1)) {
      args.fail("min_p" + at + std::to_string(a.min_p[i]) + "; it must be 0 (off) to 1");
    }
  }
}

void sample(CpuOps& ops, StreamHandle& stream, py::handle out_object, py::handle logits_object, py::handle temperature,
            py::handle top_k, py::handle top_p, py::handle min_p, py::handle seed, py::handle position) {
  const OpArgs args("sample");
  const Tensor logits = logits_of(args, logits_object);
  const int64_t rows = logits.shape[0];
  const char* what = "rows of logits";
  const Tensor out = vector_out(args, out_object, "out", kInt32, rows, what);
  const Tensor t = vector_in(args, temperature, "temperature", kFloat32, rows, what),
               k = vector_in(args, top_k, "top_k", kInt32, rows, what),
               p = vector_in(args, top_p, "top_p", kFloat32, rows, what),
               m = vector_in(args, min_p, "min_p", kFloat32, rows, what),
               s = vector_in(args, seed, "seed", kUInt64, rows, what),
               at = vector_in(args, position, "position", kInt64, rows, what);
  const cpu::SampleArgs a{out.as<int32_t>(), logits.as<float>(), rows,          logits.shape[1], logits.strides[0],
                          t.as<float>(),     k.as<int32_t>(),    p.as<float>(), m.as<float>(),   s.as<uint64_t>(),
                          at.as<int64_t>()};
  check_sampling(args, a);
  Accesses accesses(args, stream.device->runtime);
  accesses.add("out", out, ACCEL_WRITE);
  const std::pair<const char*, const Tensor&> inputs[] = {{"logits", logits}, {"temperature", t}, {"top_k", k},    {"top_p", p},
                                                          {"min_p", m},       {"seed", s},        {"position", at}};
  for (const auto& [name, input] : inputs) accesses.add(name, input, ACCEL_READ);
  launch_compute(stream, args.op(), accesses.data(), accesses.size(),
                 [&pool = *ops.pool, kernel = ops.table->sample, a] { kernel(pool, a); });
}

void check_penalties(const OpArgs& args, const cpu::PenaltyArgs& a) {
  if (!args.sees_values()) return;
  for (int64_t r = 0; r < a.rows; ++r) {
    const std::string at = "[" + std::to_string(r) + "] is ";
    if (!(a.repetition[r] > 0) || !std::isfinite(a.repetition[r])) {
      args.fail("repetition" + at + std::to_string(a.repetition[r]) + "; it must be finite and above 0 (1 is off)");
    }
    if (!std::isfinite(a.frequency[r])) {
      args.fail("frequency" + at + std::to_string(a.frequency[r]) + "; it must be finite (0 is off)");
    }
    if (!std::isfinite(a.presence[r])) {
      args.fail("presence" + at + std::to_string(a.presence[r]) + "; it must be finite (0 is off)");
    }
    if (a.off(r)) continue;
    const int32_t* const text = a.history.row(r);
    const auto vocab = static_cast<uint32_t>(a.vocab);
    uint32_t most = 0;  // a negative id is above any other
    for (int32_t i = 0; i < a.history.lengths[r]; ++i) most = std::max(most, static_cast<uint32_t>(text[i]));
    if (a.history.lengths[r] == 0 || most < vocab) continue;
    const int32_t* const wrong =
        std::find_if(text, text + a.history.lengths[r], [=](int32_t id) { return static_cast<uint32_t>(id) >= vocab; });
    args.fail("history[" + std::to_string(a.history.slots[r]) + ", " + std::to_string(wrong - text) + "] is " +
              std::to_string(*wrong) + "; the vocabulary of logits is [0, " + std::to_string(a.vocab) + ")");
  }
}

void penalties(CpuOps& ops, StreamHandle& stream, py::handle logits_object, py::handle history, py::handle slots,
               py::handle prompt_lens, py::handle lengths, py::handle repetition, py::handle frequency, py::handle presence) {
  const OpArgs args("penalties");
  const Tensor logits = logits_of(args, logits_object, Use::kWrite);
  const int64_t rows = logits.shape[0];
  const char* what = "rows of logits";
  const HistoryIn past(args, history, slots, &prompt_lens, lengths, rows, what);
  const Tensor repeat = vector_in(args, repetition, "repetition", kFloat32, rows, what),
               often = vector_in(args, frequency, "frequency", kFloat32, rows, what),
               present = vector_in(args, presence, "presence", kFloat32, rows, what);
  const cpu::PenaltyArgs a{
      logits.as<float>(), rows, logits.shape[1], logits.strides[0], past.view(), repeat.as<float>(), often.as<float>(),
      present.as<float>()};
  check_penalties(args, a);
  Accesses accesses(args, stream.device->runtime);
  accesses.add("logits", logits, ACCEL_READ_WRITE);
  past.declare(accesses);
  const std::pair<const char*, const Tensor&> inputs[] = {{"repetition", repeat}, {"frequency", often}, {"presence", present}};
  for (const auto& [name, input] : inputs) accesses.add(name, input, ACCEL_READ);
  launch_compute(stream, args.op(), accesses.data(), accesses.size(), [&pool = *ops.pool, a] { cpu::penalties(pool, a); });
}

void logit_bias(CpuOps&, StreamHandle& stream, py::handle logits_object, py::handle row_start, py::handle tokens,
                py::handle values) {
  const OpArgs args("logit_bias");
  const Tensor logits = logits_of(args, logits_object, Use::kWrite);
  const int64_t rows = logits.shape[0];
  const Tensor start = vector_in(args, row_start, "row_start", kInt32, rows + 1, "rows of logits + 1"),
               token = args.in(tokens, "tokens", {kInt32}, 1, 1);
  args.contiguous(token, "tokens");
  const int64_t count = token.shape[0];
  const Tensor value = vector_in(args, values, "values", kFloat32, count, "number of tokens");
  check_offsets(args, start, "row_start", count, "tokens", 0);
  args.range(token.as<int32_t>(), count, "tokens", 0, logits.shape[1], "the vocabulary of logits");
  for (int64_t i = 0; args.sees_values() && i < count; ++i) {
    if (!(value.as<float>()[i] < HUGE_VALF)) {
      args.fail("values[" + std::to_string(i) + "] is " + std::to_string(value.as<float>()[i]) +
                "; it must be finite, or minus infinity to ban the token");
    }
  }
  const cpu::BiasArgs a{logits.as<float>(), rows, logits.strides[0], start.as<int32_t>(), token.as<int32_t>(),
                        value.as<float>()};
  Accesses accesses(args, stream.device->runtime);
  accesses.add("logits", logits, ACCEL_READ_WRITE);
  const std::pair<const char*, const Tensor&> inputs[] = {{"row_start", start}, {"tokens", token}, {"values", value}};
  for (const auto& [name, input] : inputs) accesses.add(name, input, ACCEL_READ);
  launch_compute(stream, args.op(), accesses.data(), accesses.size(), [a] { cpu::logit_bias(a); });
}

void bad_words(CpuOps&, StreamHandle& stream, py::handle logits_object, py::handle history, py::handle slots,
               py::handle prompt_lens, py::handle lengths, py::handle row_start, py::handle word_start, py::handle words) {
  const OpArgs args("bad_words");
  const Tensor logits = logits_of(args, logits_object, Use::kWrite);
  const int64_t rows = logits.shape[0];
  const HistoryIn past(args, history, slots, &prompt_lens, lengths, rows, "rows of logits");
  const WordsIn lists(args, row_start, word_start, words, rows, logits.shape[1], "the vocabulary of logits");
  const cpu::BadWordArgs a{logits.as<float>(), rows, logits.strides[0], past.view(), lists.view()};
  Accesses accesses(args, stream.device->runtime);
  accesses.add("logits", logits, ACCEL_READ_WRITE);
  past.declare(accesses);
  lists.declare(accesses);
  launch_compute(stream, args.op(), accesses.data(), accesses.size(), [a] { cpu::bad_words(a); });
}

void logprobs(CpuOps& ops, StreamHandle& stream, py::handle value, py::handle rank, py::handle top_ids, py::handle top_values,
              py::handle logits_object, py::handle tokens) {
  const OpArgs args("logprobs");
  const Tensor logits = logits_of(args, logits_object);
  const int64_t rows = logits.shape[0];
  const char* what = "rows of logits";
  const Tensor own = vector_out(args, value, "value", kFloat32, rows, what),
               place = vector_out(args, rank, "rank", kInt32, rows, what), ids = args.out(top_ids, "top_ids", {kInt32}, 2, 2),
               best = args.out(top_values, "top_values", {kFloat32}, 2, 2);
  args.dim(ids, "top_ids", 0, rows, what);
  args.contiguous(ids, "top_ids");
  args.at_most(ids.shape[1], "the columns of top_ids", logits.shape[1]);
  args.dim(best, "top_values", 0, rows, what);
  args.dim(best, "top_values", 1, ids.shape[1], "columns of top_ids");
  args.contiguous(best, "top_values");
  const Tensor token = vector_in(args, tokens, "tokens", kInt32, rows, what);
  args.range(token.as<int32_t>(), rows, "tokens", -1, logits.shape[1], "-1 (none) or the vocabulary of logits");
  const cpu::LogprobArgs a{
      own.as<float>(), place.as<int32_t>(), ids.as<int32_t>(), best.as<float>(),   logits.as<float>(), rows,
      logits.shape[1], logits.strides[0],   ids.shape[1],      token.as<int32_t>()};
  Accesses accesses(args, stream.device->runtime);
  const std::pair<const char*, const Tensor&> outputs[] = {
      {"value", own}, {"rank", place}, {"top_ids", ids}, {"top_values", best}};
  for (const auto& [name, output] : outputs) accesses.add(name, output, ACCEL_WRITE);
  accesses.add("logits", logits, ACCEL_READ);
  accesses.add("tokens", token, ACCEL_READ);
  launch_compute(stream, args.op(), accesses.data(), accesses.size(),
                 [&pool = *ops.pool, kernel = ops.table->logprobs, a] { kernel(pool, a); });
}

}  // namespace

void bind_logits_ops(OpsClass& cls) {
  cls.def("penalties", &penalties, py::arg("stream"), py::arg("logits"), py::arg("history"), py::arg("slots"),
          py::arg("prompt_lens"), py::arg("lengths"), py::arg("repetition"), py::arg("frequency"), py::arg("presence"));
  cls.def("logit_bias", &logit_bias, py::arg("stream"), py::arg("logits"), py::arg("row_start"), py::arg("tokens"),
          py::arg("values"));
  cls.def("bad_words", &bad_words, py::arg("stream"), py::arg("logits"), py::arg("history"), py::arg("slots"),
          py::arg("prompt_lens"), py::arg("lengths"), py::arg("row_start"), py::arg("word_start"), py::arg("words"));
  cls.def("argmax", &argmax, py::arg("stream"), py::arg("out"), py::arg("logits"));
  cls.def("sample", &sample, py::arg("stream"), py::arg("out"), py::arg("logits"), py::arg("temperature"), py::arg("top_k"),
          py::arg("top_p"), py::arg("min_p"), py::arg("seed"), py::arg("position"));
  cls.def("logprobs", &logprobs, py::arg("stream"), py::arg("value"), py::arg("rank"), py::arg("top_ids"),
          py::arg("top_values"), py::arg("logits"), py::arg("tokens"));
}

}  // namespace accel::py_bindings
