// The arguments that name a slot's history and a row's words, for the ops that take them (accel/ops/ragged.py draws both).
//
// Invariant: once made, every index in them is within what it indexes.
#pragma once

#include "cpu_ops.h"

namespace accel::py_bindings {

// history [slots, tokens], and slots, prompt_lens (where the op has it; else pass nullptr) and lengths of `rows` rows.
class HistoryIn {
 public:
  HistoryIn(const OpArgs& args, py::handle history, py::handle slots, const py::handle* prompt_lens, py::handle lengths,
            int64_t rows, const char* what);
  cpu::History view() const;
  void declare(Accesses& accesses) const;

 private:
  Tensor history_, slots_, prompt_lens_, lengths_;
  bool has_prompt_lens_;
};

// `start` must rise from 0 to `total`, each row of it by `least` or more.
void check_offsets(const OpArgs& args, const Tensor& start, const char* name, int64_t total, const char* what, int64_t least);

// Words of each of `rows` rows, whose tokens must lie in [0, vocab), which messages call `limit`.
class WordsIn {
 public:
  WordsIn(const OpArgs& args, py::handle row_start, py::handle word_start, py::handle words, int64_t rows, int64_t vocab,
          const char* limit);
  cpu::WordLists view() const;
  void declare(Accesses& accesses) const;

 private:
  Tensor row_start_, word_start_, words_;
};

}  // namespace accel::py_bindings
