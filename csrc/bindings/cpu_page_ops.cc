// Whole pages: gather, scatter, copy, zero, checksum. These also run on copy streams, so block ids are copied into the closure.

#include <algorithm>
#include <memory>
#include <unordered_set>
#include <vector>

#include "cpu_ops.h"

namespace accel::py_bindings {
namespace {

using Ids = std::vector<int32_t>;

// The pool as runs of bytes. Its view is [blocks, layers, 2, kv_heads, block_size, head_dim] in either memory order.
cpu::PagePool page_pool(const OpArgs& args, const Tensor& t) {
  if (t.shape[2] != 2)
    args.fail("pool has shape " + t.shape_text() + "; it must be [blocks, layers, 2, kv_heads, block_size, head_dim]");
  if (!t.contiguous(3)) args.fail("pool must be contiguous in [kv_heads, block_size, head_dim]");
  const int64_t size = t.dtype.bytes(), run = t.shape[3] * t.shape[4] * t.shape[5] * size;
  cpu::PagePool pool{t.data, t.shape[0], t.shape[1] * 2, run, t.strides[0] * size, t.strides[2] * size};
  if (t.contiguous(1)) {  // page_first: the page is one run
    pool.run_bytes = run * pool.outer;
    pool.outer = 1;
    pool.run_stride = pool.run_bytes;
  } else if (t.shape[1] > 1 && t.strides[1] != 2 * t.strides[2]) {
    args.fail("pool must have K and V of all layers evenly spaced (page_first or layer_first)");
  }
  return pool;
}

Tensor pool_tensor(const OpArgs& args, py::handle object, bool written) {
  const auto types = {kFloat32, kBFloat16, kFloat16, kInt8, kUInt8};
  return written ? args.out(object, "pool", types, 6, 6) : args.in(object, "pool", types, 6, 6);
}

// Ids that cannot be looked at yet are as many zeros; they are read again when the op runs.
Ids block_ids(const OpArgs& args, py::handle object, const char* name, int64_t blocks) {
  const Tensor t = args.ids(object, name);
  if (!t.data) return Ids(static_cast<size_t>(t.shape[0]));
  OpContext seen = g_op;  // what lies on the host can be looked at in any phase
  if (seen.phase == OpPhase::kCheck) seen.phase = OpPhase::kRun;
  const OpScope scope(seen);
  args.range(t.as<int32_t>(), t.shape[0], name, 0, blocks, "the pool");
  return Ids(t.as<int32_t>(), t.as<int32_t>() + t.shape[0]);
}

void refuse_duplicates(const OpArgs& args, const Ids& ids, const char* name) {
  if (!args.sees_values()) return;
  std::unordered_set<int32_t> seen;
  for (const int32_t id : ids) {
    if (!seen.insert(id).second)
      args.fail(std::string(name) + " names block " + std::to_string(id) + " twice; each may be written once");
  }
}

void add_pages(Accesses& accesses, const cpu::PagePool& pool, const Ids& ids, AccelAccessMode mode) {
  if (!accesses.wanted()) return;
  for (int64_t i = 0; i < pool.outer; ++i) {
    accesses.add_indexed(pool.data + i * pool.run_stride, static_cast<size_t>(pool.run_bytes), pool.block_stride, ids, mode);
  }
}

// A tensor of page bytes, [n, page_bytes].
void check_pages(const OpArgs& args, const Tensor& t, const char* name, const cpu::PagePool& pool, const Ids& ids) {
  args.dim(t, name, 0, static_cast<int64_t>(ids.size()), "number of blocks");
  args.dim(t, name, 1, pool.page_bytes(), "bytes of a page");
  args.contiguous(t, name);
}

// The tensor's address and the moved-in ids, shared so that the closure can be copied.
std::shared_ptr<const Ids> keep(Ids ids) { return std::make_shared<const Ids>(std::move(ids)); }
int64_t size_of(const Ids& ids) { return static_cast<int64_t>(ids.size()); }

void pages_gather(CpuOps& ops, StreamHandle& stream, py::handle out_object, py::handle pool_object, py::handle blocks) {
  const OpArgs args("pages_gather");
  const Tensor out = args.out(out_object, "out", {kUInt8}, 2, 2);
  const Tensor whole = pool_tensor(args, pool_object, false);
  const cpu::PagePool pool = page_pool(args, whole);
  Ids ids = block_ids(args, blocks, "blocks", pool.blocks);
  check_pages(args, out, "out", pool, ids);
  Accesses accesses(args, stream.device->runtime);
  accesses.check("pool", whole, ACCEL_READ);
  add_pages(accesses, pool, ids, ACCEL_READ);
  accesses.add("out", out, ACCEL_WRITE);
  launch(stream, args.op(), accesses.data(), accesses.size(),
         [threads = ops.pool, kernel = ops.table->pages_gather, out = out.data, pool, kept = keep(std::move(ids))] {
           kernel(*threads, out, pool, kept->data(), size_of(*kept));
         });
}

void pages_scatter(CpuOps& ops, StreamHandle& stream, py::handle pool_object, py::handle data_object, py::handle blocks) {
  const OpArgs args("pages_scatter");
  const Tensor whole = pool_tensor(args, pool_object, true);
  const cpu::PagePool pool = page_pool(args, whole);
  const Tensor data = args.in(data_object, "data", {kUInt8}, 2, 2);
  Ids ids = block_ids(args, blocks, "blocks", pool.blocks);
  check_pages(args, data, "data", pool, ids);
  refuse_duplicates(args, ids, "blocks");
  Accesses accesses(args, stream.device->runtime);
  accesses.check("pool", whole, ACCEL_WRITE);
  add_pages(accesses, pool, ids, ACCEL_WRITE);
  accesses.add("data", data, ACCEL_READ);
  launch(stream, args.op(), accesses.data(), accesses.size(),
         [threads = ops.pool, kernel = ops.table->pages_scatter, data = data.data, pool, kept = keep(std::move(ids))] {
           kernel(*threads, data, pool, kept->data(), size_of(*kept));
         });
}

void pages_copy(CpuOps& ops, StreamHandle& stream, py::handle pool_object, py::handle src, py::handle dst) {
  const OpArgs args("pages_copy");
  const Tensor whole = pool_tensor(args, pool_object, true);
  const cpu::PagePool pool = page_pool(args, whole);
  Ids from = block_ids(args, src, "src", pool.blocks), to = block_ids(args, dst, "dst", pool.blocks);
  if (from.size() != to.size())
    args.fail("src names " + std::to_string(from.size()) + " blocks and dst " + std::to_string(to.size()));
  refuse_duplicates(args, to, "dst");
  const std::unordered_set<int32_t> sources(from.begin(), from.end());
  for (const int32_t id : to) {
    if (args.sees_values() && sources.count(id))
      args.fail("dst names block " + std::to_string(id) + ", which src names too; copy in two steps");
  }
  Accesses accesses(args, stream.device->runtime);
  accesses.check("pool", whole, ACCEL_WRITE);
  add_pages(accesses, pool, from, ACCEL_READ);
  add_pages(accesses, pool, to, ACCEL_WRITE);
  launch(stream, args.op(), accesses.data(), accesses.size(),
         [threads = ops.pool, kernel = ops.table->pages_copy, pool, kept_from = keep(std::move(from)),
          kept_to = keep(std::move(to))] { kernel(*threads, pool, kept_from->data(), kept_to->data(), size_of(*kept_to)); });
}

void pages_zero(CpuOps& ops, StreamHandle& stream, py::handle pool_object, py::handle blocks) {
  const OpArgs args("pages_zero");
  const Tensor whole = pool_tensor(args, pool_object, true);
  const cpu::PagePool pool = page_pool(args, whole);
  Ids ids = block_ids(args, blocks, "blocks", pool.blocks);
  refuse_duplicates(args, ids, "blocks");
  Accesses accesses(args, stream.device->runtime);
  accesses.check("pool", whole, ACCEL_WRITE);
  add_pages(accesses, pool, ids, ACCEL_WRITE);
  launch(stream, args.op(), accesses.data(), accesses.size(),
         [threads = ops.pool, kernel = ops.table->pages_zero, pool, kept = keep(std::move(ids))] {
           kernel(*threads, pool, kept->data(), size_of(*kept));
         });
}

void pages_checksum(CpuOps& ops, StreamHandle& stream, py::handle out_object, py::handle pool_object, py::handle blocks) {
  const OpArgs args("pages_checksum");
  const Tensor out = args.out(out_object, "out", {kUInt64}, 1, 1);
  const Tensor whole = pool_tensor(args, pool_object, false);
  const cpu::PagePool pool = page_pool(args, whole);
  Ids ids = block_ids(args, blocks, "blocks", pool.blocks);
  args.dim(out, "out", 0, size_of(ids), "number of blocks");
  args.contiguous(out, "out");
  if (pool.run_bytes % 4 != 0) {
    args.fail("a run of the pool has " + std::to_string(pool.run_bytes) + " bytes; the checksum works on multiples of 4");
  }
  Accesses accesses(args, stream.device->runtime);
  accesses.check("pool", whole, ACCEL_READ);
  add_pages(accesses, pool, ids, ACCEL_READ);
  accesses.add("out", out, ACCEL_WRITE);
  launch(stream, args.op(), accesses.data(), accesses.size(),
         [threads = ops.pool, kernel = ops.table->pages_checksum, o = out.as<uint64_t>(), pool, kept = keep(std::move(ids))] {
           kernel(*threads, o, pool, kept->data(), size_of(*kept));
         });
}

}  // namespace

void bind_page_ops(OpsClass& cls) {
  cls.def("pages_gather", &pages_gather, py::arg("stream"), py::arg("out"), py::arg("pool"), py::arg("blocks"));
  cls.def("pages_scatter", &pages_scatter, py::arg("stream"), py::arg("pool"), py::arg("data"), py::arg("blocks"));
  cls.def("pages_copy", &pages_copy, py::arg("stream"), py::arg("pool"), py::arg("src"), py::arg("dst"));
  cls.def("pages_zero", &pages_zero, py::arg("stream"), py::arg("pool"), py::arg("blocks"));
  cls.def("pages_checksum", &pages_checksum, py::arg("stream"), py::arg("out"), py::arg("pool"), py::arg("blocks"));
}

}  // namespace accel::py_bindings
