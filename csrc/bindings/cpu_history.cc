#include "cpu_history.h"

namespace accel::py_bindings {

HistoryIn::HistoryIn(const OpArgs& args, py::handle history, py::handle slots, const py::handle* prompt_lens,
                     py::handle lengths, int64_t rows, const char* what)
    : history_(args.in(history, "history", {kInt32}, 2, 2)),
      slots_(vector_in(args, slots, "slots", kInt32, rows, what)),
      lengths_(vector_in(args, lengths, "lengths", kInt32, rows, what)),
      has_prompt_lens_(prompt_lens != nullptr) {
  args.contiguous(history_, "history");
  args.at_most(history_.shape[1], "the tokens a slot of history holds", kMostInt32);
  args.range(slots_.as<int32_t>(), rows, "slots", 0, history_.shape[0], "the slots of history");
  const auto* length = lengths_.as<int32_t>();
  args.range(length, rows, "lengths", 0, history_.shape[1] + 1, "the number of tokens a slot of history may hold");
  if (!has_prompt_lens_) return;
  prompt_lens_ = vector_in(args, *prompt_lens, "prompt_lens", kInt32, rows, what);
  const auto* prompt = prompt_lens_.as<int32_t>();
  for (int64_t r = 0; args.sees_values() && r < rows; ++r) {
    if (prompt[r] < 0 || prompt[r] > length[r]) {
      args.fail("prompt_lens[" + std::to_string(r) + "] is " + std::to_string(prompt[r]) + "; it must be 0 to lengths[" +
                std::to_string(r) + "], which is " + std::to_string(length[r]));
    }
  }
}

cpu::History HistoryIn::view() const {
  return {history_.as<int32_t>(), history_.shape[1], slots_.as<int32_t>(),
          has_prompt_lens_ ? prompt_lens_.as<int32_t>() : nullptr, lengths_.as<int32_t>()};
}

void HistoryIn::declare(Accesses& accesses) const {
  accesses.add("history", history_, ACCEL_READ);
  accesses.add("slots", slots_, ACCEL_READ);
  if (has_prompt_lens_) accesses.add("prompt_lens", prompt_lens_, ACCEL_READ);
  accesses.add("lengths", lengths_, ACCEL_READ);
}

void check_offsets(const OpArgs& args, const Tensor& start, const char* name, int64_t total, const char* what, int64_t least) {
  const auto* offset = start.as<int32_t>();
  const int64_t last = start.shape[0] - 1;
  if (last < 0) args.fail(std::string(name) + " is empty; it must have an entry more than there are lists");
  if (!args.sees_values()) return;
  for (int64_t i = 0; i < last; ++i) {
    if (int64_t{offset[i + 1]} - offset[i] < least) {
      args.fail(std::string(name) + "[" + std::to_string(i + 1) + "] is " + std::to_string(offset[i + 1]) + " after " +
                std::to_string(offset[i]) + "; each must be " + std::to_string(least) + " or more above the one before");
    }
  }
  if (offset[0] != 0 || offset[last] != total) {
    args.fail(std::string(name) + " runs from " + std::to_string(offset[0]) + " to " + std::to_string(offset[last]) +
              "; it must run from 0 to the " + std::to_string(total) + " " + what);
  }
}

WordsIn::WordsIn(const OpArgs& args, py::handle row_start, py::handle word_start, py::handle words, int64_t rows, int64_t vocab,
                 const char* limit)
    : row_start_(vector_in(args, row_start, "row_start", kInt32, rows + 1, "rows + 1")),
      word_start_(args.in(word_start, "word_start", {kInt32}, 1, 1)),
      words_(args.in(words, "words", {kInt32}, 1, 1)) {
  args.contiguous(word_start_, "word_start");
  args.contiguous(words_, "words");
  check_offsets(args, word_start_, "word_start", words_.shape[0], "tokens of words", 1);
  check_offsets(args, row_start_, "row_start", word_start_.shape[0] - 1, "words of word_start", 0);
  args.range(words_.as<int32_t>(), words_.shape[0], "words", 0, vocab, limit);
}

cpu::WordLists WordsIn::view() const { return {row_start_.as<int32_t>(), word_start_.as<int32_t>(), words_.as<int32_t>()}; }

void WordsIn::declare(Accesses& accesses) const {
  accesses.add("row_start", row_start_, ACCEL_READ);
  accesses.add("word_start", word_start_, ACCEL_READ);
  accesses.add("words", words_, ACCEL_READ);
}

}  // namespace accel::py_bindings
