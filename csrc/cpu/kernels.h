// The CPU kernels: plain functions over raw memory, one table per instruction set.
//
// Invariant ("Numbers" in docs/architecture.md): a result depends on the values that enter it and on nothing else. Not on
// the number of threads, on the other rows of a batch, on how a prompt was cut into chunks, on the order of the KV pool,
// or on the instruction set. Therefore:
//   * every sum has one order, written here, and every instruction set follows it;
//   * all arithmetic is float32 with explicit fma; no fast-math, no contraction left to the compiler, our own exp and log;
//   * the "vector" of this file is 16 lanes of float32 on every machine (one zmm, two ymm, or sixteen scalars).
// Arguments were checked by the binding: kernels do not validate.
#pragma once

#include <cstddef>
#include <cstdint>

namespace accel::cpu {

class ThreadPool;

// Element of a weight or of the KV cache.
enum class Elem : uint8_t { kF32, kBF16, kF16 };

// A float32 tensor [rows, heads, dim] whose last dimension is contiguous. heads = 1 for a matrix. Strides in elements.
struct Rows {
  float* data;
  int64_t rows, heads, dim;
  int64_t row_stride, head_stride;
};
struct ConstRows {
  const float* data;
  int64_t rows, heads, dim;
  int64_t row_stride, head_stride;
};

// --- packed weights ------------------------------------------------------------------------------------------------
//
// A weight W [n, k] (n output features) is held in panels of kPanel output features, so that a vector holds outputs and
// each output element is one k-sequential fma chain:
//
//   float formats   panel p: for k: w[p*32 + 0][k] … w[p*32 + 31][k]                        (32 elements a row of k)
//   q4 (GGUF Q4_0/Q4_1)
//                   panel p: for each block of 32 k:
//                     scale f16[32] | minimum f16[32] | 32 rows of 16 bytes: byte j = low nibble column j,
//                                                                             high nibble column j + 16
//                     value = fma(q, scale, minimum), exactly what GGUF means (q * scale is exact in float32)
//   q8 (GGUF Q8_0)  panel p: for each block of 32 k: scale f16[32] | 32 rows of 32 int8;  value = q * scale (exact)
//
// n is padded to a multiple of 32 with zeros; padded outputs are computed and not stored. q4 and q8 need k % 32 == 0.
inline constexpr int64_t kPanel = 32;
inline constexpr int64_t kQuantBlock = 32;

enum class WeightFormat : uint8_t { kF32, kBF16, kF16, kQ8, kQ4 };

struct PackedWeight {
  WeightFormat format;
  int64_t n, k;
  const void* data;
};

// Bytes of a packed weight, padding included.
size_t packed_bytes(WeightFormat format, int64_t n, int64_t k);

// What the rows handed to pack_rows look like: plain elements, or GGUF blocks of 32 (ggml: block_q4_0, block_q4_1, block_q8_0).
enum class RowEncoding : uint8_t { kF32, kBF16, kF16, kQ4_0, kQ4_1, kQ8_0 };

// Bytes of one source row of k elements.
size_t row_bytes(RowEncoding encoding, int64_t k);

// Place `count` source rows (contiguous, row_bytes each) as output features `targets[i]` (or first + i where targets is
// null) of the packed weight at `data`. Plain elements may be packed to any float format (round to nearest even), Q4_0 and
// Q4_1 only to kQ4, Q8_0 only to kQ8. Threads may pack disjoint rows at once only when they lie in different panels. Packing
// row n - 1 also clears the padding. False, with `data` as it was, when a Q4_0 scale d has no exact half -8 d (|d| > 8188):
// such a weight must be held in a float format.
bool pack_rows(WeightFormat format, int64_t n, int64_t k, void* data, RowEncoding encoding, const void* rows, int64_t count,
               const int64_t* targets, int64_t first);

// --- attention -----------------------------------------------------------------------------------------------------

// One layer of the KV pool: element (block, k or v, head, token, d) lies at data + block*block_stride + which*kv_stride +
// head*head_stride + token*dim + d. Strides in elements; both pool orders are strides of this view.
struct KvLayer {
  void* data;
  Elem elem;
  int64_t blocks, kv_heads, block_size, dim;
  int64_t block_stride, kv_stride, head_stride;
};

struct AttentionArgs {
  Rows out;     // [tokens, heads, dim]
  ConstRows q;  // [tokens, heads, dim]
  KvLayer kv;
  const int32_t* block_tables;  // [requests, table_stride]; entries past a request's length are never read
  int64_t table_stride;
  const int32_t* query_start;  // [requests + 1] prefix sums of query lengths
  const int32_t* kv_lens;      // [requests] KV tokens including those of this step
  int64_t requests;
  float scale;
  int64_t window;  // 0: all; else each query sees at most this many latest positions, itself included
};

// --- sampling ------------------------------------------------------------------------------------------------------

struct SampleArgs {
  int32_t* out;         // [rows]
  const float* logits;  // [rows, vocab], row stride in elements
  int64_t rows, vocab, row_stride;
  const float* temperature;  // [rows]; 0 = greedy
  const int32_t* top_k;      // [rows]; 0 = off
  const float* top_p;        // [rows]; 1 = off
  const float* min_p;        // [rows]; 0 = off
  const uint64_t* seed;      // [rows]
  const int64_t* position;   // [rows] absolute position of the token being sampled: the counter of its random numbers
};

// Token ids of the slots, [slots, stride]; row r's are the first lengths[r] of slot slots[r], of which prompt_lens[r] are its
// prompt.
struct History {
  const int32_t* tokens;
  int64_t stride;
  const int32_t* slots;        // [rows]
  const int32_t* prompt_lens;  // [rows]; null where an op does not ask
  const int32_t* lengths;      // [rows]
  const int32_t* row(int64_t r) const { return tokens + slots[r] * stride; }
};

// Row r's words are row_start[r] to row_start[r + 1], the tokens of word w words[word_start[w]] to words[word_start[w + 1]].
struct WordLists {
  const int32_t* row_start;
  const int32_t* word_start;
  const int32_t* words;
};

struct PenaltyArgs {
  float* logits;  // [rows, vocab], row stride in elements
  int64_t rows, vocab, row_stride;
  History history;
  const float* repetition;  // [rows]; 1 = off
  const float* frequency;   // [rows]; 0 = off
  const float* presence;    // [rows]; 0 = off
  bool off(int64_t r) const { return repetition[r] == 1.0f && frequency[r] == 0.0f && presence[r] == 0.0f; }
};

struct BiasArgs {
  float* logits;
  int64_t rows, row_stride;
  const int32_t* row_start;  // [rows + 1]
  const int32_t* tokens;
  const float* values;
};

struct BadWordArgs {
  float* logits;
  int64_t rows, row_stride;
  History history;
  WordLists lists;
};

struct LogprobArgs {
  float* value;       // [rows]
  int32_t* rank;      // [rows]
  int32_t* top_ids;   // [rows, top]
  float* top_values;  // [rows, top]
  const float* logits;
  int64_t rows, vocab, row_stride, top;
  const int32_t* tokens;  // [rows]; -1: none
};

// --- pages ---------------------------------------------------------------------------------------------------------

// The whole pool, seen as bytes: page b is `outer` runs of `run_bytes` at data + b*block_stride + i*run_stride, in
// canonical order (layer, k then v). page_first has a single run a page; layer_first has layers * 2.
struct PagePool {
  std::byte* data;
  int64_t blocks, outer, run_bytes, block_stride, run_stride;
  int64_t page_bytes() const { return outer * run_bytes; }
};

// --- step state ----------------------------------------------------------------------------------------------------

inline constexpr int32_t kLastSampled = -1;  // in StepArgs::tokens: take the token last sampled in the request's slot

struct PackStepArgs {
  // in, one row a request of the plan
  int64_t requests, tokens_total, block_size, table_stride;
  const int32_t* tokens;        // [tokens_total] host ids, or kLastSampled
  const int32_t* slots;         // [requests]
  const int32_t* query_start;   // [requests + 1]
  const int32_t* computed;      // [requests] tokens already in the cache
  const int32_t* block_tables;  // [requests, table_stride]
  const int32_t* last_token;    // [slots]
  // out
  int32_t* input_ids;     // [tokens_total]
  int32_t* positions;     // [tokens_total]
  int64_t* slot_mapping;  // [tokens_total] block * block_size + offset
  int32_t* kv_lens;       // [requests] computed + length
  int32_t* last_rows;     // [requests] row of each request's last token
};

// Why a request ended; the values are those of accel.runner.FinishReason.
enum class Stop : int32_t { kNone = 0, kEos = 1, kLength = 2, kWord = 3 };

struct StopArgs {
  int32_t* out;               // [rows] Stop
  const int32_t* sampled;     // [rows]
  const int32_t* generated;   // [rows] tokens generated, this one included
  const int32_t* max_tokens;  // [rows]
  const int32_t* min_tokens;  // [rows]
  const uint8_t* ignore_eos;  // [rows]
  const int32_t* eos;         // [eos_count]
  int64_t rows, eos_count;
  History history;  // without the sampled token
  WordLists lists;
};

// --- the table -----------------------------------------------------------------------------------------------------

struct KernelTable {
  const char* isa;

  // out[r] = x[r] * rsqrt(mean(x[r]^2) + eps) * weight. The sum of squares: lane j adds elements d = j mod 16 in rising
  // order by fma; the 16 lanes are then added as a fixed binary tree (0+8, 1+9 …; then 0+4 …). out may be x.
  void (*rms_norm)(ThreadPool&, const Rows& out, const ConstRows& x, const float* weight, float eps);
  // residual += x, then out = rms_norm(residual).
  void (*add_rms_norm)(ThreadPool&, const Rows& out, const Rows& residual, const ConstRows& x, const float* weight, float eps);
  // In place on x [tokens, heads, dim], the first `rotary_dim` elements: pairs (i, i + rotary_dim/2), or (2i, 2i + 1) when
  // interleaved. table [positions, rotary_dim]: cos then sin. a' = fma(a, cos, -(b*sin)), b' = fma(b, cos, a*sin).
  void (*rotary)(ThreadPool&, const Rows& x, const int32_t* positions, const float* table, int64_t rotary_dim,
                 bool interleaved);
  // k, v [tokens, kv_heads, dim] to their pages, rounded to nearest even; a negative slot is skipped.
  void (*write_kv)(ThreadPool&, const ConstRows& k, const ConstRows& v, const KvLayer& kv, const int64_t* slot_mapping);
  void (*attention)(ThreadPool&, const AttentionArgs&);
  // out[r, i] = silu(x[r, i]) * x[r, i + width], x [rows, 2*width].
  void (*silu_and_mul)(ThreadPool&, const Rows& out, const ConstRows& x);
  // out [rows, n] = x [rows, k] W^T (+ bias): per element acc = 0; for k rising: acc = fma(x[k], w[k], acc); then + bias.
  void (*linear)(ThreadPool&, const Rows& out, const ConstRows& x, const PackedWeight&, const float* bias);
  void (*embedding)(ThreadPool&, const Rows& out, const int32_t* ids, const PackedWeight&);
  void (*gather_rows)(ThreadPool&, const Rows& out, const ConstRows& x, const int32_t* index);
  // Largest logit, lowest id among equals; NaN counts as minus infinity; a row of nothing but NaN and -inf gives -1.
  void (*argmax)(ThreadPool&, int32_t* out, const float* logits, int64_t rows, int64_t vocab, int64_t row_stride);
  void (*sample)(ThreadPool&, const SampleArgs&);
  // log softmax: (l - max) - log(sum exp(l - max)); the sum is float64 in the order of sum_weights (select.h).
  void (*logprobs)(ThreadPool&, const LogprobArgs&);
  void (*pages_gather)(ThreadPool&, std::byte* out, const PagePool&, const int32_t* blocks, int64_t count);
  void (*pages_scatter)(ThreadPool&, const std::byte* in, const PagePool&, const int32_t* blocks, int64_t count);
  void (*pages_copy)(ThreadPool&, const PagePool&, const int32_t* from, const int32_t* to, int64_t count);
  void (*pages_zero)(ThreadPool&, const PagePool&, const int32_t* blocks, int64_t count);
  // Sum over the page's little-endian uint32 words w_i (canonical order) of mix(w_i + (i + 1) * 0x9E3779B97F4A7C15) mod 2^64,
  // mix = the finaliser of splitmix64: order-sensitive, and any number of lanes may compute it.
  void (*pages_checksum)(ThreadPool&, uint64_t* out, const PagePool&, const int32_t* blocks, int64_t count);
};

enum class Isa : uint8_t { kGeneric, kAvx2, kAvx512 };

// The best set this machine has, from cpuid and xgetbv.
Isa detect_isa();
const char* isa_name(Isa);
// Null where this build or this machine lacks the set.
const KernelTable* kernels(Isa);

// Rules on logits: a few elements of each row, so the same code on every instruction set. Each operation rounds once.
void penalties(ThreadPool&, const PenaltyArgs&);
void logit_bias(const BiasArgs&);
void bad_words(const BadWordArgs&);

// Whether the `count` tokens at `end` are the last ones of text[0, length).
bool ends_with(const int32_t* text, int64_t length, const int32_t* end, int64_t count);

// Step state: integer work too small to be worth a vector or a thread.
void pack_step(const PackStepArgs&);
void stop_check(const StopArgs&);
// history[slots[i], positions[i]] = tokens[i], history [slots, stride]; a negative token leaves its place alone.
void write_history(int32_t* history, int64_t stride, const int32_t* slots, const int32_t* positions, const int32_t* tokens,
                   int64_t count);
void update_slots(int32_t* last_token, const int32_t* slots, const int32_t* sampled, int64_t rows);

}  // namespace accel::cpu
