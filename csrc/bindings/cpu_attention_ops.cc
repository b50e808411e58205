// write_kv and attention over pages.

#include <algorithm>
#include <functional>
#include <vector>

#include "cpu_ops.h"

namespace accel::py_bindings {
namespace {

// Declares K and V of the blocks in `index`, one access each: the two may lie apart (layer_first).
void add_pages(Accesses& accesses, const cpu::KvLayer& kv, int64_t size, const std::vector<int32_t>& index,
               AccelAccessMode mode) {
  if (!accesses.wanted()) return;
  const int64_t run = (kv.kv_heads - 1) * kv.head_stride + kv.block_size * kv.dim;
  for (int which = 0; which < 2; ++which) {
    accesses.add_indexed(static_cast<std::byte*>(kv.data) + which * kv.kv_stride * size, static_cast<size_t>(run * size),
                         kv.block_stride * size, index, mode);
  }
}

// Two tokens in one slot would race. Slots mostly rise, since the tokens of a request follow each other; only others are
// sorted.
void refuse_repeated_slots(const OpArgs& args, const int64_t* slot, int64_t tokens) {
  if (!args.sees_values()) return;
  if (std::is_sorted(slot, slot + tokens, std::less_equal<int64_t>()) || tokens < 2) return;
  std::vector<int64_t> sorted(slot, slot + tokens);
  std::sort(sorted.begin(), sorted.end());
  for (int64_t i = 1; i < tokens; ++i) {
    if (sorted[i] >= 0 && sorted[i] == sorted[i - 1]) {
      args.fail("slot_mapping names slot " + std::to_string(sorted[i]) + " twice; each may be written once");
    }
  }
}

void write_kv(CpuOps& ops, StreamHandle& stream, py::handle kv_object, py::handle k_object, py::handle v_object,
              py::handle slots_object) {
  const OpArgs args("write_kv");
  const Tensor kv_tensor = args.out(kv_object, "kv", {kFloat32, kBFloat16, kFloat16}, 5, 5);
  const Tensor k = args.in(k_object, "k", {kFloat32}, 3, 3), v = args.in(v_object, "v", {kFloat32}, 3, 3);
  const Tensor slots = args.in(slots_object, "slot_mapping", {kInt64}, 1, 1);
  const cpu::KvLayer kv = kv_layer(args, kv_tensor);
  args.dim(slots, "slot_mapping", 0, k.shape[0], "tokens of k");
  args.dim(v, "v", 0, k.shape[0], "tokens of k");
  for (const auto& [t, name] : {std::pair<const Tensor&, const char*>{k, "k"}, {v, "v"}}) {
    args.dim(t, name, 1, kv.kv_heads, "kv heads of kv");
    args.dim(t, name, 2, kv.dim, "head_dim of kv");
  }
  args.contiguous(slots, "slot_mapping");
  const int64_t tokens = k.shape[0];
  const auto* slot = slots.as<int64_t>();
  for (int64_t i = 0; args.sees_values() && i < tokens; ++i) {
    if (slot[i] >= kv.blocks * kv.block_size) {
      args.fail("slot_mapping[" + std::to_string(i) + "] is " + std::to_string(slot[i]) + "; kv has " +
                std::to_string(kv.blocks * kv.block_size) + " slots");
    }
  }
  refuse_repeated_slots(args, slot, tokens);
  const cpu::ConstRows key = const_rows(args, k, "k"), value = const_rows(args, v, "v");
  Accesses accesses(args, stream.device->runtime);
  accesses.check("kv", kv_tensor, ACCEL_WRITE);
  accesses.add("k", k, ACCEL_READ);
  accesses.add("v", v, ACCEL_READ);
  accesses.add("slot_mapping", slots, ACCEL_READ);
  if (accesses.wanted()) {
    std::vector<int32_t> index;
    for (int64_t i = 0; i < tokens; ++i) {
      if (slot[i] >= 0) index.push_back(static_cast<int32_t>(slot[i] / kv.block_size));
    }
    index.erase(std::unique(index.begin(), index.end()), index.end());
    add_pages(accesses, kv, kv_tensor.dtype.bytes(), index, ACCEL_WRITE);
  }
  launch_compute(
      stream, args.op(), accesses.data(), accesses.size(),
      [&pool = *ops.pool, kernel = ops.table->write_kv, key, value, kv, slot] { kernel(pool, key, value, kv, slot); });
}

// Every block that some query of request r may see.
struct VisibleBlocks {
  int64_t first, end;
};
VisibleBlocks visible_blocks(const cpu::AttentionArgs& a, int64_t r) {
  const int64_t queries = a.query_start[r + 1] - a.query_start[r], length = a.kv_lens[r];
  if (queries == 0) return {0, 0};
  const int64_t oldest = a.window > 0 ? std::max<int64_t>(0, length - queries - a.window + 1) : 0;
  return {oldest / a.kv.block_size, (length + a.kv.block_size - 1) / a.kv.block_size};
}

void check_requests(const OpArgs& args, const cpu::AttentionArgs& a, int64_t tokens) {
  if (!args.sees_values()) return;
  if (a.query_start[0] != 0 || a.query_start[a.requests] != tokens) {
    args.fail("query_start runs from " + std::to_string(a.query_start[0]) + " to " + std::to_string(a.query_start[a.requests]) +
              "; it must run from 0 to the " + std::to_string(tokens) + " tokens of q");
  }
  for (int64_t r = 0; r < a.requests; ++r) {
    const int64_t queries = static_cast<int64_t>(a.query_start[r + 1]) - a.query_start[r];
    const std::string who = "request " + std::to_string(r);
    if (queries < 0) args.fail("query_start falls at " + who);
    if (a.kv_lens[r] < queries) {
      args.fail("kv_lens[" + std::to_string(r) + "] is " + std::to_string(a.kv_lens[r]) + "; it counts the " +
                std::to_string(queries) + " tokens of this step too");
    }
    const VisibleBlocks seen = visible_blocks(a, r);
    if (seen.end > a.table_stride) {
      args.fail("kv_lens[" + std::to_string(r) + "] is " + std::to_string(a.kv_lens[r]) + ", which needs " +
                std::to_string(seen.end) + " blocks; block_tables has " + std::to_string(a.table_stride) + " columns");
    }
    for (int64_t i = seen.first; i < seen.end; ++i) {
      const int32_t block = a.block_tables[r * a.table_stride + i];
      if (block < 0 || block >= a.kv.blocks) {
        args.fail("block_tables[" + std::to_string(r) + ", " + std::to_string(i) + "] is " + std::to_string(block) +
                  "; kv has " + std::to_string(a.kv.blocks) + " blocks");
      }
    }
  }
}

void attention(CpuOps& ops, StreamHandle& stream, py::handle out_object, py::handle q_object, py::handle kv_object,
               py::handle tables_object, py::handle start_object, py::handle lens_object, double scale, int64_t window) {
  const OpArgs args("attention");
  const Tensor out = args.out(out_object, "out", {kFloat32}, 3, 3), q = args.in(q_object, "q", {kFloat32}, 3, 3);
  const Tensor kv = args.in(kv_object, "kv", {kFloat32, kBFloat16, kFloat16}, 5, 5);
  const Tensor tables = args.in(tables_object, "block_tables", {kInt32}, 2, 2);
  const Tensor start = args.in(start_object, "query_start", {kInt32}, 1, 1),
               lens = args.in(lens_object, "kv_lens", {kInt32}, 1, 1);
  for (int i = 0; i < 3; ++i) args.dim(out, "out", i, q.shape[i], "shape of q");
  cpu::AttentionArgs a{
      rows(args, out, "out"), const_rows(args, q, "q"), kv_layer(args, kv), tables.as<int32_t>(),      tables.shape[1],
      start.as<int32_t>(),    lens.as<int32_t>(),       tables.shape[0],    static_cast<float>(scale), window};
  args.dim(q, "q", 2, a.kv.dim, "head_dim of kv");
  if (q.shape[1] < 1) args.fail("q has shape " + q.shape_text() + "; it must have 1 head or more");
  if (q.shape[1] % a.kv.kv_heads != 0) {
    args.fail("q has " + std::to_string(q.shape[1]) + " heads, which " + std::to_string(a.kv.kv_heads) +
              " kv heads do not divide");
  }
  args.dim(start, "query_start", 0, a.requests + 1, "requests + 1");
  args.dim(lens, "kv_lens", 0, a.requests, "requests");
  args.contiguous(tables, "block_tables");
  args.contiguous(start, "query_start");
  args.contiguous(lens, "kv_lens");
  if (window < 0) args.fail("window is " + std::to_string(window) + "; it must be 0 (none) or more");
  check_requests(args, a, q.shape[0]);
  Accesses accesses(args, stream.device->runtime);
  accesses.add("out", out, ACCEL_WRITE);
  accesses.check("kv", kv, ACCEL_READ);
  const std::pair<const char*, const Tensor&> inputs[] = {
      {"q", q}, {"block_tables", tables}, {"query_start", start}, {"kv_lens", lens}};
  for (const auto& [name, input] : inputs) accesses.add(name, input, ACCEL_READ);
  if (accesses.wanted()) {
    std::vector<int32_t> index;
    for (int64_t r = 0; r < a.requests; ++r) {
      const VisibleBlocks seen = visible_blocks(a, r);
      index.insert(index.end(), a.block_tables + r * a.table_stride + seen.first,
                   a.block_tables + r * a.table_stride + seen.end);
    }
    add_pages(accesses, a.kv, kv.dtype.bytes(), index, ACCEL_READ);
  }
  launch_compute(stream, args.op(), accesses.data(), accesses.size(),
                 [&pool = *ops.pool, kernel = ops.table->attention, a] { kernel(pool, a); });
}

}  // namespace

void bind_attention_ops(OpsClass& cls) {
  cls.def("write_kv", &write_kv, py::arg("stream"), py::arg("kv"), py::arg("k"), py::arg("v"), py::arg("slot_mapping"));
  cls.def("attention", &attention, py::arg("stream"), py::arg("out"), py::arg("q"), py::arg("kv"), py::arg("block_tables"),
          py::arg("query_start"), py::arg("kv_lens"), py::kw_only(), py::arg("scale"), py::arg("window") = 0);
}

}  // namespace accel::py_bindings
