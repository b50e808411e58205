// Prints a digest of every CPU kernel's output on fixed inputs, one line a kernel, and fails where two instruction sets of
// this machine disagree. scripts/emulate.sh compares the lines across machines, real and emulated: the same bits everywhere,
// and no instruction that the machine lacks.

#include <atomic>
#include <cstdio>
#include <cstring>
#include <map>
#include <new>
#include <string>
#include <vector>

#include "../csrc/cpu/kernels.h"
#include "../csrc/cpu/thread_pool.h"

namespace {

using namespace accel::cpu;  // NOLINT: a program of one file
using Digests = std::map<std::string, uint64_t>;

// A small generator of our own: the standard library's distributions differ between implementations.
struct Random {
  uint64_t state = 0x9E3779B97F4A7C15;
  uint32_t next() {
    state = state * 6364136223846793005 + 1442695040888963407;
    return static_cast<uint32_t>(state >> 33);
  }
  float value() { return static_cast<float>(static_cast<int32_t>(next() % 20001) - 10000) * 0x1p-12f; }
  std::vector<float> values(int64_t count) {
    std::vector<float> v(static_cast<size_t>(count));
    for (float& x : v) x = value();
    return v;
  }
};

template <typename T>
uint64_t digest(const std::vector<T>& values) {
  uint64_t hash = 0xcbf29ce484222325;
  const auto* bytes = reinterpret_cast<const unsigned char*>(values.data());
  for (size_t i = 0; i < values.size() * sizeof(T); ++i) hash = (hash ^ bytes[i]) * 0x100000001b3;
  return hash;
}

// One NaN is as good as another.
uint64_t digest_numbers(std::vector<float> values) {
  for (float& v : values) {
    if (v != v) v = __builtin_nanf("");
  }
  return digest(values);
}

Rows rows(std::vector<float>& v, int64_t n, int64_t heads, int64_t dim) { return {v.data(), n, heads, dim, heads * dim, dim}; }
ConstRows in(const std::vector<float>& v, int64_t n, int64_t heads, int64_t dim) {
  return {v.data(), n, heads, dim, heads * dim, dim};
}

void norms(const KernelTable& k, ThreadPool& pool, Digests& out) {
  Random random;
  const int64_t n = 3, h = 100;
  const auto x = random.values(n * h), weight = random.values(h);
  auto residual = random.values(n * h);
  std::vector<float> y(x.size());
  k.rms_norm(pool, rows(y, n, 1, h), in(x, n, 1, h), weight.data(), 1e-5f);
  out["rms_norm"] = digest(y);
  k.add_rms_norm(pool, rows(y, n, 1, h), rows(residual, n, 1, h), in(x, n, 1, h), weight.data(), 1e-5f);
  out["add_rms_norm"] = digest(y) ^ digest(residual);
  std::vector<float> half(static_cast<size_t>(n * h / 2));
  k.silu_and_mul(pool, rows(half, n, 1, h / 2), in(x, n, 1, h));
  out["silu_and_mul"] = digest(half);
}

void linears(const KernelTable& k, ThreadPool& pool, Digests& out) {
  const struct {
    const char* name;
    WeightFormat format;
    RowEncoding encoding;
  } kinds[] = {{"float32", WeightFormat::kF32, RowEncoding::kF32},
               {"bfloat16", WeightFormat::kBF16, RowEncoding::kF32},
               {"float16", WeightFormat::kF16, RowEncoding::kF32},
               {"q8", WeightFormat::kQ8, RowEncoding::kQ8_0},
               {"q4", WeightFormat::kQ4, RowEncoding::kQ4_1}};
  const int64_t n = 70, width = 160;
  for (const auto& kind : kinds) {
    Random random;
    const size_t bytes = row_bytes(kind.encoding, width) * static_cast<size_t>(n);
    std::vector<unsigned char> raw(bytes);
    if (kind.encoding == RowEncoding::kF32) {
      const auto values = random.values(n * width);
      std::memcpy(raw.data(), values.data(), bytes);
    } else {
      for (unsigned char& b : raw) b = static_cast<unsigned char>(random.next() & 0x3B);  // halves stay finite and small
    }
    std::vector<std::byte> packed(packed_bytes(kind.format, n, width));
    if (!pack_rows(kind.format, n, width, packed.data(), kind.encoding, raw.data(), n, nullptr, 0)) std::abort();
    const PackedWeight weight{kind.format, n, width, packed.data()};
    for (const int64_t m : {1, 19}) {
      const auto x = random.values(m * width), bias = random.values(n);
      std::vector<float> y(static_cast<size_t>(m * n));
      k.linear(pool, rows(y, m, 1, n), in(x, m, 1, width), weight, bias.data());
      out[std::string("linear ") + kind.name + " " + std::to_string(m)] = digest(y);
    }
    const std::vector<int32_t> ids = {0, 69, 31, 32};
    std::vector<float> y(ids.size() * static_cast<size_t>(width));
    k.embedding(pool, rows(y, 4, 1, width), ids.data(), weight);
    out[std::string("embedding ") + kind.name] = digest(y);
  }
}

void attends(const KernelTable& k, ThreadPool& pool, Digests& out) {
  const int64_t heads = 6, kv_heads = 2, dim = 40, block = 16, blocks = 24;
  for (const Elem elem : {Elem::kF32, Elem::kBF16, Elem::kF16}) {
    Random random;
    const int64_t per_block = 2 * kv_heads * block * dim;
    std::vector<uint32_t> pages(static_cast<size_t>(blocks * per_block));
    const KvLayer kv{pages.data(), elem, blocks, kv_heads, block, dim, per_block, kv_heads * block * dim, block * dim};
    std::vector<int64_t> slots;
    for (int64_t i = 0; i < 300; ++i) slots.push_back(i);
    const auto keys = random.values(300 * kv_heads * dim), values = random.values(300 * kv_heads * dim);
    k.write_kv(pool, in(keys, 300, kv_heads, dim), in(values, 300, kv_heads, dim), kv, slots.data());
    const std::vector<int32_t> start = {0, 1, 38}, lens = {300, 150};
    std::vector<int32_t> table(2 * blocks);
    for (int64_t i = 0; i < blocks; ++i)
      table[static_cast<size_t>(i)] = table[static_cast<size_t>(blocks + i)] = static_cast<int32_t>(i);
    for (const int64_t window : {0, 33}) {
      auto q = random.values(38 * heads * dim);
      std::vector<int32_t> positions(38, 77);
      const auto angles = random.values(128 * dim);
      k.rotary(pool, rows(q, 38, heads, dim), positions.data(), angles.data(), dim, window != 0);
      std::vector<float> y(q.size());
      k.attention(pool, {rows(y, 38, heads, dim), in(q, 38, heads, dim), kv, table.data(), blocks, start.data(), lens.data(), 2,
                         0.15f, window});
      out["attention " + std::to_string(static_cast<int>(elem)) + " window " + std::to_string(window)] =
          digest(y) ^ digest(pages);
    }
  }
}

void samples(const KernelTable& k, ThreadPool& pool, Digests& out) {
  Random random;
  const int64_t n = 64, vocab = 777;
  const auto logits = random.values(n * vocab);
  std::vector<float> temperature, top_p, min_p;
  std::vector<int32_t> top_k, picked(n);
  std::vector<uint64_t> seed;
  std::vector<int64_t> position;
  for (int64_t i = 0; i < n; ++i) {
    temperature.push_back(static_cast<float>(i % 3) * 0.4f);
    top_p.push_back(i % 2 ? 1.0f : 0.8f);
    min_p.push_back(i % 5 < 3 ? 0.0f : static_cast<float>(i) * 0x1p-7f);
    top_k.push_back(static_cast<int32_t>(i % 4) * 20);
    seed.push_back(random.next());
    position.push_back(i * 1000003);
  }
  k.sample(pool, {picked.data(), logits.data(), n, vocab, vocab, temperature.data(), top_k.data(), top_p.data(), min_p.data(),
                  seed.data(), position.data()});
  out["sample"] = digest(picked);
  for (int64_t i = 0; i < n; ++i) temperature[static_cast<size_t>(i)] = i % 3 == 0 ? 1e-38f : i % 3 == 1 ? 1e-5f : 1e38f;
  k.sample(pool, {picked.data(), logits.data(), n, vocab, vocab, temperature.data(), top_k.data(), top_p.data(), min_p.data(),
                  seed.data(), position.data()});
  out["sample, far temperatures"] = digest(picked);
  k.argmax(pool, picked.data(), logits.data(), n, vocab, vocab);
  out["argmax"] = digest(picked);
}

// Rules on logits, then what is said about the result.
void rules(const KernelTable& k, ThreadPool& pool, Digests& out) {
  Random random;
  const int64_t n = 9, vocab = 777, slots = 12, length = 50, top = 20;
  auto logits = random.values(n * vocab);
  for (size_t i = 0; i < logits.size(); i += 97) logits[i] = i % 2 == 0 ? __builtin_nanf("") : -__builtin_inff();
  std::vector<int32_t> history, slot, prompt, lengths, tokens, start = {0}, word_start = {0}, words;
  std::vector<float> repetition, frequency, presence, bias;
  for (int64_t i = 0; i < slots * length; ++i) history.push_back(static_cast<int32_t>(random.next() % 6));
  for (int64_t r = 0; r < n; ++r) {
    slot.push_back(static_cast<int32_t>((r * 5) % slots));
    lengths.push_back(static_cast<int32_t>(r * 6));
    prompt.push_back(static_cast<int32_t>(r * 2));
    repetition.push_back(1.0f + static_cast<float>(r) * 0.07f);
    frequency.push_back(random.value());
    presence.push_back(random.value());
    for (int64_t w = 0; w < 4; ++w) {
      for (int64_t i = 0; i <= w; ++i) words.push_back(static_cast<int32_t>(random.next() % 6));
      word_start.push_back(static_cast<int32_t>(words.size()));
      tokens.push_back(static_cast<int32_t>(random.next() % 9));
      bias.push_back(w == 3 ? -__builtin_inff() : random.value());
    }
    start.push_back(static_cast<int32_t>(tokens.size()));
  }
  const History past{history.data(), length, slot.data(), prompt.data(), lengths.data()};
  const WordLists lists{start.data(), word_start.data(), words.data()};
  penalties(pool, {logits.data(), n, vocab, vocab, past, repetition.data(), frequency.data(), presence.data()});
  out["penalties"] = digest_numbers(logits);
  logit_bias({logits.data(), n, vocab, start.data(), tokens.data(), bias.data()});
  out["logit_bias"] = digest_numbers(logits);
  bad_words({logits.data(), n, vocab, past, lists});
  out["bad_words"] = digest_numbers(logits);

  std::vector<float> value(n), top_values(n * top);
  std::vector<int32_t> rank(n), top_ids(n * top);
  k.logprobs(
      pool, {value.data(), rank.data(), top_ids.data(), top_values.data(), logits.data(), n, vocab, vocab, top, tokens.data()});
  out["logprobs"] = digest(value) ^ digest(rank) ^ digest(top_ids) ^ digest(top_values);

  std::vector<int32_t> reason(n), sampled(words.begin(), words.begin() + n);
  const std::vector<int32_t> most(n, 40), least(n, 3), eos = {5};
  const std::vector<uint8_t> ignore(n, 0);
  stop_check(
      {reason.data(), sampled.data(), lengths.data(), most.data(), least.data(), ignore.data(), eos.data(), n, 1, past, lists});
  out["stop_check"] = digest(reason);
  write_history(history.data(), length, slot.data(), prompt.data(), sampled.data(), n);
  out["write_history"] = digest(history);
}

void pages(const KernelTable& k, ThreadPool& pool, Digests& out) {
  Random random;
  auto memory = random.values(10 * 1000);
  const PagePool pages{reinterpret_cast<std::byte*>(memory.data()), 10, 4, 1000, 1000, 10000};
  const std::vector<int32_t> from = {3, 0, 7}, to = {1, 9, 2};
  std::vector<uint64_t> sums(3);
  k.pages_checksum(pool, sums.data(), pages, from.data(), 3);
  out["pages_checksum"] = digest(sums);
  k.pages_copy(pool, pages, from.data(), to.data(), 3);
  out["pages_copy"] = digest(memory);
}

Digests all(const KernelTable& k, int threads) {
  ThreadPool pool(threads);
  Digests out;
  norms(k, pool, out);
  linears(k, pool, out);
  attends(k, pool, out);
  samples(k, pool, out);
  rules(k, pool, out);
  pages(k, pool, out);
  return out;
}

// A body that throws: its exception reaches the caller, and the pool is as good as before.
bool survives_exceptions() {
  ThreadPool pool(4);
  for (int64_t job = 0; job < 200; ++job) {
    bool caught = false;
    try {
      pool.parallel_for(64, 1, [&](int64_t begin, int64_t end) {
        if (begin <= job % 64 && job % 64 < end) throw std::bad_alloc();
        if (job % 3 == 0) throw std::bad_alloc();
      });
    } catch (const std::bad_alloc&) {
      caught = true;
    }
    std::atomic<int64_t> sum{0};
    pool.parallel_for(64, 1, [&](int64_t begin, int64_t end) { sum += end - begin; });
    if (!caught || sum != 64) return false;
  }
  return true;
}

}  // namespace

int main() {
  if (!survives_exceptions()) {
    std::fprintf(stderr, "an exception inside a job is lost\n");
    return 1;
  }
  const KernelTable* generic = kernels(Isa::kGeneric);
  const Digests want = all(*generic, 1);
  for (const Isa isa : {Isa::kGeneric, Isa::kAvx2, Isa::kAvx512}) {
    const KernelTable* table = kernels(isa);
    if (!table) continue;
    std::fprintf(stderr, "%s\n", table->isa);
    if (all(*table, 3) != want) {
      std::fprintf(stderr, "%s differs from %s\n", table->isa, generic->isa);
      return 1;
    }
  }
  for (const auto& [name, hash] : want) std::printf("%-28s %016llx\n", name.c_str(), static_cast<unsigned long long>(hash));
  return 0;
}
