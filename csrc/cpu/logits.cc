// Rules on logits: penalties, biases, bad words. The exact definitions are the references of those ops.
#include <algorithm>
#include <limits>

#include "fp_env.h"
#include "kernels.h"
#include "scratch.h"
#include "thread_pool.h"

namespace accel::cpu {
namespace {

constexpr float kBanned = -std::numeric_limits<float>::infinity();

// `marks` [vocab] is 0 before and after: in between 1 + the times a token of the history was generated.
void penalise(const PenaltyArgs& args, int64_t r, int32_t* marks) {
  float* const logits = args.logits + r * args.row_stride;
  const int32_t* const text = args.history.row(r);
  const int64_t length = args.history.lengths[r], prompt = args.history.prompt_lens[r];
  for (int64_t i = 0; i < prompt; ++i) marks[text[i]] = 1;
  for (int64_t i = prompt; i < length; ++i) marks[text[i]] = std::max(marks[text[i]], 1) + 1;
  for (int64_t i = 0; i < length; ++i) {
    const int32_t token = text[i];
    if (marks[token] == 0) continue;  // done
    const int32_t count = marks[token] - 1;
    marks[token] = 0;
    float l = logits[token];
    l = l > 0.0f ? l / args.repetition[r] : l * args.repetition[r];
    l -= args.frequency[r] * static_cast<float>(count);
    if (count > 0) l -= args.presence[r];
    logits[token] = l;
  }
}

}  // namespace

void penalties(ThreadPool& pool, const PenaltyArgs& args) {
  pool.parallel_for(args.rows, 1, [&](int64_t begin, int64_t end) {
    int32_t* marks = nullptr;
    for (int64_t r = begin; r < end; ++r) {
      if (args.off(r)) continue;
      if (marks == nullptr) {
        marks = static_cast<int32_t*>(scratch(Scratch::kLocal, static_cast<size_t>(args.vocab) * sizeof(int32_t)));
        std::fill_n(marks, args.vocab, 0);
      }
      penalise(args, r, marks);
    }
  });
}

void logit_bias(const BiasArgs& args) {
  const DefaultFloatEnvironment environment;  // no pool sets it here
  for (int64_t r = 0; r < args.rows; ++r) {
    for (int32_t i = args.row_start[r]; i < args.row_start[r + 1]; ++i) {
      float& l = args.logits[r * args.row_stride + args.tokens[i]];
      l = args.values[i] == kBanned ? kBanned : l + args.values[i];
    }
  }
}

bool ends_with(const int32_t* text, int64_t length, const int32_t* end, int64_t count) {
  return count <= length && std::equal(end, end + count, text + (length - count));
}

void bad_words(const BadWordArgs& args) {
  for (int64_t r = 0; r < args.rows; ++r) {
    for (int32_t w = args.lists.row_start[r]; w < args.lists.row_start[r + 1]; ++w) {
      const int32_t* const word = args.lists.words + args.lists.word_start[w];
      const int64_t before = args.lists.word_start[w + 1] - args.lists.word_start[w] - 1;
      const int64_t prompt = args.history.prompt_lens[r], length = args.history.lengths[r];
      if (before > 0 && !ends_with(args.history.row(r) + prompt, length - prompt, word, before)) continue;
      args.logits[r * args.row_stride + word[before]] = kBanned;
    }
  }
}

}  // namespace accel::cpu
