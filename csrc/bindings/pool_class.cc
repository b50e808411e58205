// The block pool in Python: NumPy arrays in, numbers and arrays out, one crossing a verb.
//
// The GIL is never released: a verb takes about as long as giving it up and taking it back.
#include "pool_class.h"

#include <pybind11/numpy.h>

#include <algorithm>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "../core/block_pool.h"
#include "accel/error.h"
#include "errors.h"
#include "forbid_new.h"

namespace accel::py_bindings {
namespace {

namespace py = pybind11;
using core::BlockPool;

[[noreturn]] void refuse(const char* op, const std::string& message, const std::string& hint = "") {
  throw Error(ErrorKind::kInvalidArgument, message, op, hint);
}

template <typename T>
constexpr const char* kTypeName = nullptr;
template <>
constexpr const char* kTypeName<int32_t> = "int32";
template <>
constexpr const char* kTypeName<int64_t> = "int64";
template <>
constexpr const char* kTypeName<bool> = "bool";

// An argument that has to be a C-contiguous array of exactly T; nothing is converted.
template <typename T>
py::array array_of(py::handle object, const char* op, const char* name, int dims) {
  const std::string wanted = std::string("; a C-contiguous array of ") + kTypeName<T> + " is needed";
  if (!py::isinstance<py::array>(object)) refuse(op, std::string(name) + " is a " + Py_TYPE(object.ptr())->tp_name + wanted);
  py::array array = py::reinterpret_borrow<py::array>(object);
  if (!py::array_t<T, py::array::c_style>::check_(object)) {
    const std::string type = py::str(array.dtype());
    refuse(op, std::string(name) + " is an array of " + type +
                   (array.flags() & py::array::c_style ? "" : " that is not contiguous") + wanted);
  }
  if (array.ndim() != dims) {
    refuse(op, std::string(name) + " has " + std::to_string(array.ndim()) + " dimensions; " + std::to_string(dims) +
                   (dims == 1 ? " is needed" : " are needed"));
  }
  if (reinterpret_cast<uintptr_t>(array.data()) % alignof(T) != 0) refuse(op, std::string(name) + " is not aligned" + wanted);
  return array;
}

template <typename T>
const T* values(const py::array& array) {
  return static_cast<const T*>(array.data());
}

int64_t same_rows(const py::array& first, const py::array& other, const char* op, const char* what) {
  if (first.shape(0) != other.shape(0)) {
    refuse(op, std::string(what) + " have " + std::to_string(first.shape(0)) + " and " + std::to_string(other.shape(0)) +
                   " rows; they must agree");
  }
  return first.shape(0);
}

core::Digest digest_of(py::handle object, const char* op) {
  core::Digest digest;
  if (!PyBytes_Check(object.ptr()))
    refuse(op, std::string("root is a ") + Py_TYPE(object.ptr())->tp_name + "; 32 bytes are needed");
  if (PyBytes_GET_SIZE(object.ptr()) != static_cast<Py_ssize_t>(digest.size())) {
    refuse(op, "root has " + std::to_string(PyBytes_GET_SIZE(object.ptr())) + " bytes; a digest has 32",
           "CacheIdentity.root() makes one");
  }
  std::copy_n(reinterpret_cast<const uint8_t*>(PyBytes_AS_STRING(object.ptr())), digest.size(), digest.begin());
  return digest;
}

template <typename T>
py::array_t<T> to_array(const std::vector<T>& list) {
  return py::array_t<T>(static_cast<py::ssize_t>(list.size()), list.data());
}

// A lease of a transfer. Dropped without release it keeps its blocks, for something may still be reading or writing them.
struct Lease {
  std::shared_ptr<BlockPool> pool;
  int64_t id;
  std::string kind;
  std::vector<int64_t> blocks;
  bool released = false;

  Lease(std::shared_ptr<BlockPool> owner, int64_t number, std::string name, std::vector<int64_t> ids)
      : pool(std::move(owner)), id(number), kind(std::move(name)), blocks(std::move(ids)) {}
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  ~Lease() {
    if (!released) pool->abandon(id);
  }
  void release() {
    pool->release(id);
    released = true;
  }
};

core::LeaseKind kind_of(const std::string& name) {
  if (name == "SWAP") return core::LeaseKind::kSwap;
  if (name == "LOAD") return core::LeaseKind::kLoad;
  if (name == "STORE") return core::LeaseKind::kStore;
  refuse("lease", "kind is '" + name + "'; it must be SWAP, LOAD or STORE",
         "tables make REQUEST leases, steps make STEP leases");
}

py::object open(BlockPool& pool, py::handle root, py::handle tokens, int64_t limit, int64_t keep_free) {
  const py::array ids = array_of<int32_t>(tokens, "open", "tokens", 1);
  const auto opened = pool.open(digest_of(root, "open"), values<int32_t>(ids), ids.size(), limit, keep_free);
  if (!opened) return py::none();
  return py::make_tuple(opened->table, opened->hit_tokens);
}

int64_t grow(BlockPool& pool, py::handle tables_object, py::handle ends_object) {
  const py::array tables = array_of<int64_t>(tables_object, "grow", "tables", 1);
  const py::array ends = array_of<int32_t>(ends_object, "grow", "ends", 1);
  const int64_t rows = same_rows(tables, ends, "grow", "tables and ends");
  return pool.grow(values<int64_t>(tables), values<int32_t>(ends), rows);
}

int64_t begin_step(BlockPool& pool, py::handle tables_object, py::handle ends_object, py::handle out_object) {
  const char* const op = "begin_step";
  const py::array tables = array_of<int64_t>(tables_object, op, "tables", 1);
  const py::array ends = array_of<int32_t>(ends_object, op, "ends", 1);
  py::array out = array_of<int32_t>(out_object, op, "out", 2);
  const int64_t rows = same_rows(tables, ends, op, "tables and ends");
  same_rows(tables, out, op, "tables and out");
  if (!out.writeable()) refuse(op, "out is read-only");
  return pool.begin_step(values<int64_t>(tables), values<int32_t>(ends), rows, static_cast<int32_t*>(out.mutable_data()),
                         out.shape(1));
}

int64_t commit_step(BlockPool& pool, int64_t step, py::handle alive_object, py::handle computed_object,
                    py::handle tokens_object) {
  const char* const op = "commit_step";
  const py::array alive = array_of<bool>(alive_object, op, "alive", 1);
  const py::array computed = array_of<int32_t>(computed_object, op, "computed", 1);
  const py::array tokens = array_of<int32_t>(tokens_object, op, "tokens", 1);
  same_rows(alive, computed, op, "alive and computed");
  const int64_t rows = same_rows(alive, tokens, op, "alive and tokens");
  return pool.commit_step(step, values<uint8_t>(alive), values<int32_t>(computed), values<int32_t>(tokens), rows);
}

std::unique_ptr<Lease> lease(const std::shared_ptr<BlockPool>& pool, py::handle ids_object, const std::string& kind) {
  const py::array ids = array_of<int64_t>(ids_object, "lease", "ids", 1);
  const auto* const first = values<int64_t>(ids);
  std::vector<int64_t> copy(first, first + ids.size());
  const int64_t id = pool->lease(first, ids.size(), kind_of(kind));
  return std::make_unique<Lease>(pool, id, kind, std::move(copy));
}

py::dict stats(const BlockPool& pool) {
  const core::PoolStats s = pool.stats();
  py::dict d;
  for (const auto& [name, value] : {std::pair<const char*, int64_t>{"blocks", s.blocks},
                                    {"free", s.free},
                                    {"pending", s.pending},
                                    {"committed", s.committed},
                                    {"cached", s.cached},
                                    {"evictable", s.evictable},
                                    {"draining", s.draining},
                                    {"owned", s.owned},
                                    {"tables", s.tables},
                                    {"steps", s.steps},
                                    {"leases", s.leases},
                                    {"allocations", s.allocations},
                                    {"evictions", s.evictions},
                                    {"commits", s.commits},
                                    {"duplicates", s.duplicates},
                                    {"hit_tokens", s.hit_tokens},
                                    {"queried_tokens", s.queried_tokens},
                                    {"abandoned_leases", s.abandoned_leases}}) {
    d[name] = value;
  }
  return d;
}

py::bytes block_digests(py::handle root, py::handle tokens_object, int64_t block_size, bool portable) {
  const char* const op = "block_digests";
  const py::array tokens = array_of<int32_t>(tokens_object, op, "tokens", 1);
  core::Digest digest = digest_of(root, op);
  if (block_size < 1 || block_size > BlockPool::kMostBlockSize) {
    refuse(op,
           "block_size is " + std::to_string(block_size) + "; it must be 1 to " + std::to_string(BlockPool::kMostBlockSize));
  }
  const auto* const ids = values<int32_t>(tokens);
  int32_t signs = 0;
  for (py::ssize_t i = 0; i < tokens.size(); ++i) signs |= ids[i];
  for (py::ssize_t i = 0; signs < 0 && i < tokens.size(); ++i) {
    if (ids[i] < 0) refuse(op, "tokens[" + std::to_string(i) + "] is " + std::to_string(ids[i]) + "; it must be 0 or more");
  }
  core::BlockHasher hasher(static_cast<int32_t>(block_size),
                           portable ? core::sha256_compress_portable : core::sha256_compress());
  const int64_t blocks = tokens.size() / block_size;
  std::string all;
  all.reserve(static_cast<size_t>(blocks) * digest.size());
  for (int64_t i = 0; i < blocks; ++i) {
    digest = hasher.next(digest, ids + i * block_size);
    all.append(reinterpret_cast<const char*>(digest.data()), digest.size());
  }
  return py::bytes(all);
}

// Makes the whole object at once: pybind11's __new__ would hand out one without a value, which any method then reads.
PyObject* new_pool(PyTypeObject*, PyObject* args, PyObject* kwargs) {
  const char* const names[] = {"blocks", "block_size", nullptr};
  long long blocks, block_size;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "LL:BlockPool", const_cast<char**>(names), &blocks, &block_size))
    return nullptr;
  try {
    return py::cast(std::make_shared<BlockPool>(blocks, block_size)).release().ptr();
  } catch (const Error& error) {
    raise(error);
  } catch (const std::bad_alloc&) {
    raise(Error(ErrorKind::kOutOfMemory, "a pool of " + std::to_string(blocks) + " blocks does not fit", "BlockPool"));
  } catch (py::error_already_set& raised) {
    raised.restore();
  }
  return nullptr;
}

void bind_lease(py::module_& m) {
  py::class_<Lease>(m, "Lease", py::module_local(), "A hold of a transfer on blocks; released exactly once.")
      .def_property_readonly("kind", [](const Lease& l) { return l.kind; })
      .def_property_readonly("blocks", [](const Lease& l) { return to_array(l.blocks); })
      .def_property_readonly("released", [](const Lease& l) { return l.released; })
      .def("release", &Lease::release)
      .def("__enter__", [](py::object self) { return self; })
      .def("__exit__", [](Lease& l, const py::args&) {
        if (!l.released) l.release();
      });
  forbid_new(m.attr("Lease"));
}

}  // namespace

void bind_pool(py::module_& m) {
  bind_lease(m);
  py::class_<BlockPool, std::shared_ptr<BlockPool>>(m, "BlockPool", py::module_local(), py::is_final(),
                                                    "Blocks, block tables and the prefix index (csrc/core/block_pool.h).")
      .def_property_readonly("blocks", &BlockPool::blocks)
      .def_property_readonly("block_size", &BlockPool::block_size)
      .def(
          "match",
          [](const BlockPool& pool, py::handle root, py::handle tokens, int64_t limit) {
            const py::array ids = array_of<int32_t>(tokens, "match", "tokens", 1);
            return pool.match(digest_of(root, "match"), values<int32_t>(ids), ids.size(), limit);
          },
          py::arg("root"), py::arg("tokens"), py::arg("limit"))
      .def("open", &open, py::arg("root"), py::arg("tokens"), py::kw_only(), py::arg("limit"), py::arg("keep_free"))
      .def("grow", &grow, py::arg("tables"), py::arg("ends"))
      .def("begin_step", &begin_step, py::arg("tables"), py::arg("ends"), py::arg("out"))
      .def("commit_step", &commit_step, py::arg("step"), py::arg("alive"), py::arg("computed"), py::arg("tokens"))
      .def("drop_step", &BlockPool::drop_step, py::arg("step"))
      .def("close_table", &BlockPool::close_table, py::arg("table"))
      .def(
          "table_blocks", [](const BlockPool& pool, int64_t table) { return to_array(pool.table_blocks(table)); },
          py::arg("table"))
      .def(
          "table_tokens", [](const BlockPool& pool, int64_t table) { return to_array(pool.table_tokens(table)); },
          py::arg("table"))
      .def("lease", &lease, py::arg("ids"), py::arg("kind"))
      .def("drop_cached", &BlockPool::drop_cached)
      .def("stats", &stats)
      .def("check", &BlockPool::check);
  auto* const type = reinterpret_cast<PyTypeObject*>(m.attr("BlockPool").ptr());
  type->tp_new = new_pool;
  type->tp_init = [](PyObject*, PyObject*, PyObject*) { return 0; };
  m.def("block_digests", &block_digests, py::arg("root"), py::arg("tokens"), py::arg("block_size"), py::kw_only(),
        py::arg("portable") = false,
        "The digests of the full blocks of `tokens`, 32 bytes each (accel/cache/identity.py defines them). `portable` leaves\n"
        "the processor's SHA instructions aside.");
}

}  // namespace accel::py_bindings
