#include "op_args.h"

#include <algorithm>
#include <utility>

namespace accel::py_bindings {
namespace {

std::string type_list(std::initializer_list<DataType> types) {
  std::string text;
  for (const DataType t : types) text += (text.empty() ? "" : ", ") + dtype_name(t);
  return text;
}

}  // namespace

Tensor OpArgs::in(py::handle object, const char* name, std::initializer_list<DataType> types, int min_dims,
                  int max_dims) const {
  const Tensor t = read_tensor(object, op_, name);
  if (t.device_type != kHostDevice)
    fail(std::string(name) + " is on a device of DLPack type " + std::to_string(t.device_type) + ", not in host memory");
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

Tensor OpArgs::out(py::handle object, const char* name, std::initializer_list<DataType> types, int min_dims,
                   int max_dims) const {
  const Tensor t = in(object, name, types, min_dims, max_dims);
  if (t.readonly) fail(std::string(name) + " is read-only, and the op writes it");
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

void Accesses::add(const Tensor& t, AccelAccessMode mode) {
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
