#include "op_args.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace accel::py_bindings {
namespace {

std::string type_list(std::initializer_list<DataType> types) {
  std::string text;
  for (const DataType t : types) text += (text.empty() ? "" : ", ") + dtype_name(t);
  return text;
}

// First and past-the-end byte that the elements of `t` can touch.
std::pair<const std::byte*, const std::byte*> range_of(const Tensor& t) {
  int64_t low = 0, high = 0;
  for (int32_t i = 0; i < t.ndim; ++i) {
    const int64_t reach = (t.shape[i] - 1) * t.strides[i];
    (reach < 0 ? low : high) += reach;
  }
  const int64_t size = t.dtype.bytes();
  return {t.data + low * size, t.data + (high + 1) * size};
}

// Whether two elements share an address: from the innermost dimension out, each stride must step over what lies inside it.
bool overlaps_itself(const Tensor& t) {
  if (t.numel() == 0) return false;
  std::vector<std::pair<int64_t, int64_t>> dims;  // |stride|, extent
  for (int32_t i = 0; i < t.ndim; ++i) {
    if (t.shape[i] > 1) dims.emplace_back(t.strides[i] < 0 ? -t.strides[i] : t.strides[i], t.shape[i]);
  }
  std::sort(dims.begin(), dims.end());
  int64_t inside = 1;
  for (const auto& [stride, extent] : dims) {
    if (stride < inside) return true;
    inside = stride * (extent - 1) + inside;
  }
  return false;
}

bool same_elements(const Tensor& a, const Tensor& b) {
  bool same = a.data == b.data && a.dtype == b.dtype && a.ndim == b.ndim;
  for (int32_t i = 0; same && i < a.ndim; ++i)
    same = a.shape[i] == b.shape[i] && (a.shape[i] == 1 || a.strides[i] == b.strides[i]);
  return same;
}

}  // namespace

Tensor OpArgs::in(py::handle object, const char* name, std::initializer_list<DataType> types, int min_dims,
                  int max_dims) const {
  Tensor t = read_tensor(object, op_, name);
  locate(t, name);
  if (std::find(types.begin(), types.end(), t.dtype) == types.end()) {
    fail(std::string(name) + " is " + dtype_name(t.dtype) + "; it must be " + type_list(types));
  }
  if (t.ndim < min_dims || t.ndim > max_dims) {
    const std::string limit =
        min_dims == max_dims ? std::to_string(min_dims) : std::to_string(min_dims) + " to " + std::to_string(max_dims);
    fail(std::string(name) + " has shape " + t.shape_text() + "; it must have " + limit + " dimensions");
  }
  return t;
}

// Makes `t` what this phase may use, or refuses where it lies.
void OpArgs::locate(Tensor& t, const char* name) const {
  if (g_op.phase == OpPhase::kDirect) {
    if (t.device_type != kHostDevice)
      fail(std::string(name) + " is on a device of DLPack type " + std::to_string(t.device_type) + ", not in host memory");
    return;
  }
  if (t.device_type == kHostDevice)
    fail(std::string(name) + " is in host memory; the op takes tensors of its device (Device.empty, Device.copy)");
  if (t.numel() == 0) return;
  const auto [begin, end] = range_of(t);
  void* usable = nullptr;
  if (g_op.runtime->work_address(g_op.device, begin, static_cast<size_t>(end - begin), &usable) != ACCEL_OK)
    fail(std::string(name) + " " + g_op.runtime->last_error());
  if (usable == begin) fail(std::string(name) + " is not in the memory of this device");
  if (g_op.phase == OpPhase::kRun) t.data = static_cast<std::byte*>(usable) + (t.data - begin);
}

// Host memory or the device's, for ids that go into a launch by value. Null data: they cannot be looked at yet.
Tensor OpArgs::ids(py::handle object, const char* name) const {
  Tensor t = read_tensor(object, op_, name);
  if (t.device_type != kHostDevice || g_op.phase == OpPhase::kDirect) {
    t = in(object, name, {kInt32}, 1, 1);
    if (!sees_values()) t.data = nullptr;
  } else if (t.dtype != kInt32 || t.ndim != 1) {
    fail(std::string(name) + " is " + dtype_name(t.dtype) + " of shape " + t.shape_text() +
         "; it must be int32 of one dimension");
  }
  contiguous(t, name);
  return t;
}

Tensor OpArgs::out(py::handle object, const char* name, std::initializer_list<DataType> types, int min_dims,
                   int max_dims) const {
  const Tensor t = in(object, name, types, min_dims, max_dims);
  if (t.readonly) fail(std::string(name) + " is read-only, and the op writes it");
  if (overlaps_itself(t))
    fail(std::string(name) + " has elements that share memory, and the op writes it; make a contiguous copy");
  return t;
}

void OpArgs::dim(const Tensor& t, const char* name, int dim, int64_t wanted, const char* what) const {
  if (t.shape[dim] == wanted) return;
  fail(std::string(name) + " has shape " + t.shape_text() + "; dimension " + std::to_string(dim) + " must be " +
       std::to_string(wanted) + " (" + what + ")");
}

void OpArgs::contiguous(const Tensor& t, const char* name) const {
  if (!t.contiguous()) fail(std::string(name) + " is not contiguous; make a contiguous copy");
}

void OpArgs::last_contiguous(const Tensor& t, const char* name) const {
  if (!t.contiguous(t.ndim - 1)) fail(std::string(name) + " is not contiguous in its last dimension; make a contiguous copy");
}

void Accesses::check(const char* name, const Tensor& t, AccelAccessMode mode) {
  if (t.numel() == 0) return;
  const auto [begin, end] = range_of(t);
  for (const Argument& other : seen_) {
    if ((mode | other.mode) == ACCEL_READ) continue;
    const bool one_reads = mode == ACCEL_READ || other.mode == ACCEL_READ;
    if (alias_ == Alias::kSameElements && one_reads && same_elements(t, other.tensor)) continue;
    // Whole ranges, from first to last element: views that interleave count as overlapping.
    const auto [other_begin, other_end] = range_of(other.tensor);
    if (begin < other_end && other_begin < end) {
      args_.fail(std::string(name) + " and " + other.name +
                 " overlap in memory, and the op writes one of them; give it a tensor of its own");
    }
  }
  seen_.push_back({name, t, mode});
}

void Accesses::add(const char* name, const Tensor& t, AccelAccessMode mode) {
  check(name, t, mode);
  if (!wanted_ || t.numel() == 0) return;
  if (t.contiguous()) {
    list_.push_back({t.data, static_cast<size_t>(t.nbytes()), 0, nullptr, 1, mode});
    return;
  }
  // Rows of the first dimension, each from its first to its last element.
  int64_t last = 0;
  for (int32_t i = 1; i < t.ndim; ++i) last += (t.shape[i] - 1) * t.strides[i];
  const int64_t size = t.dtype.bytes();
  list_.push_back(
      {t.data, static_cast<size_t>((last + 1) * size), t.strides[0] * size, nullptr, static_cast<size_t>(t.shape[0]), mode});
}

void Accesses::add_indexed(void* base, size_t bytes, int64_t stride, std::vector<int32_t> index, AccelAccessMode mode) {
  if (!wanted_ || index.empty()) return;
  indices_.push_back(std::move(index));
  list_.push_back({base, bytes, stride, indices_.back().data(), indices_.back().size(), mode});
}

}  // namespace accel::py_bindings
