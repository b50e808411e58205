// Reads a Python object as a tensor. Every native module has this unit; the View class itself is bound by accel._core.

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "accel/error.h"
#include "dlpack.h"
#include "view.h"

namespace accel::py_bindings {
namespace {

[[noreturn]] void refuse(const char* op, const char* argument, const std::string& what) {
  throw Error(ErrorKind::kInvalidArgument, std::string(argument) + " " + what, op);
}

// The exchange table of a type, or null. Looked up once a type; types of tensors live as long as the process.
const dlpack::ExchangeTable* exchange_table(PyTypeObject* type) {
  static std::unordered_map<PyTypeObject*, const dlpack::ExchangeTable*> tables;
  if (const auto it = tables.find(type); it != tables.end()) return it->second;
  const dlpack::ExchangeTable* table = nullptr;
  const py::handle handle(reinterpret_cast<PyObject*>(type));
  if (py::hasattr(handle, dlpack::kAttribute)) {
    const py::object capsule = handle.attr(dlpack::kAttribute);
    table = static_cast<const dlpack::ExchangeTable*>(PyCapsule_GetPointer(capsule.ptr(), dlpack::kCapsule));
    if (!table) PyErr_Clear();
    while (table && table->major != dlpack::kMajor) table = table->previous;
    if (table && !table->tensor_from_py_object_no_sync) table = nullptr;
  }
  Py_INCREF(type);  // the key must not be reused by another type
  return tables.emplace(type, table).first->second;
}

Tensor from_dlpack(const dlpack::BorrowedTensor& dl, const char* op, const char* argument) {
  if (dl.ndim > Tensor::kMaxDims) refuse(op, argument, "has " + std::to_string(dl.ndim) + " dimensions; the limit is 8");
  if (dl.dtype.lanes != 1) refuse(op, argument, "has a vector element type");
  Tensor t;
  t.data = static_cast<std::byte*>(dl.data) + dl.byte_offset;
  t.dtype = DataType{static_cast<TypeCode>(dl.dtype.code), dl.dtype.bits};
  t.device_type = dl.device.type;
  t.ndim = dl.ndim;
  std::copy_n(dl.shape, dl.ndim, t.shape);
  if (dl.strides) {
    std::copy_n(dl.strides, dl.ndim, t.strides);
  } else {
    t.set_row_major();
  }
  return t;
}

Tensor from_numpy(const py::array& array, const char* op, const char* argument) {
  if (array.ndim() > Tensor::kMaxDims)
    refuse(op, argument, "has " + std::to_string(array.ndim()) + " dimensions; the limit is 8");
  const char kind = array.dtype().kind(), order = array.dtype().byteorder();
  if (order != '=' && order != '|') refuse(op, argument, "is a NumPy array of foreign byte order");
  const auto size = static_cast<uint8_t>(array.itemsize());
  Tensor t;
  switch (kind) {
    case 'f':
      t.dtype = DataType{TypeCode::kFloat, static_cast<uint8_t>(size * 8)};
      break;
    case 'i':
      t.dtype = DataType{TypeCode::kInt, static_cast<uint8_t>(size * 8)};
      break;
    case 'u':
      t.dtype = DataType{TypeCode::kUInt, static_cast<uint8_t>(size * 8)};
      break;
    case 'b':
      t.dtype = kBool;
      break;
    default:
      refuse(op, argument, "is a NumPy array of kind '" + std::string(1, kind) + "', which no op takes");
  }
  t.data = const_cast<std::byte*>(static_cast<const std::byte*>(array.data()));
  t.readonly = !array.writeable();
  t.ndim = static_cast<int32_t>(array.ndim());
  for (int32_t i = 0; i < t.ndim; ++i) {
    t.shape[i] = array.shape(i);
    if (array.strides(i) % size != 0 && t.shape[i] > 1)
      refuse(op, argument, "has strides that are no multiple of its element size");
    t.strides[i] = array.strides(i) / size;
  }
  return t;
}

// Strides in elements of an object that has data_ptr: an attribute `strides` or a method `stride`; row-major where it
// has neither.
void read_strides(py::handle object, Tensor& t, const char* op, const char* argument) {
  std::vector<int64_t> strides;
  if (py::hasattr(object, "strides")) {
    strides = object.attr("strides").cast<std::vector<int64_t>>();
  } else if (py::hasattr(object, "stride")) {
    strides = object.attr("stride")().cast<std::vector<int64_t>>();
  } else {
    if (py::hasattr(object, "is_contiguous") && !object.attr("is_contiguous")().cast<bool>()) {
      refuse(op, argument, "is not contiguous and does not tell its strides");
    }
    t.set_row_major();
    return;
  }
  if (static_cast<int32_t>(strides.size()) != t.ndim) refuse(op, argument, "has a stride too few or too many");
  std::copy(strides.begin(), strides.end(), t.strides);
}

// Host memory where the object says so; anything else is some device, which no host op takes.
int32_t read_device(py::handle object) {
  for (const char* name : {"place", "device"}) {
    if (!py::hasattr(object, name)) continue;
    const std::string text = py::str(object.attr(name));
    const bool host = text.find("cpu") != std::string::npos || text.find("CPU") != std::string::npos;
    constexpr int32_t kOtherDevice = 12;  // DLPack's kDLExtDev
    return host ? kHostDevice : kOtherDevice;
  }
  return kHostDevice;
}

// For places without DLPack: address, shape, dtype and device by name.
Tensor from_accessors(py::handle object, const char* op, const char* argument) {
  Tensor t;
  t.data = reinterpret_cast<std::byte*>(object.attr("data_ptr")().cast<uintptr_t>());
  const auto shape = object.attr("shape").cast<std::vector<int64_t>>();
  if (shape.size() > Tensor::kMaxDims)
    refuse(op, argument, "has " + std::to_string(shape.size()) + " dimensions; the limit is 8");
  t.ndim = static_cast<int32_t>(shape.size());
  std::copy(shape.begin(), shape.end(), t.shape);
  std::string name = py::str(object.attr("dtype"));
  t.dtype = parse_dtype(name.substr(name.find_last_of('.') + 1));
  t.device_type = read_device(object);
  read_strides(object, t, op, argument);
  return t;
}

// What no reader may let through.
Tensor validated(const Tensor& t, const char* op, const char* argument) {
  for (int32_t i = 0; i < t.ndim; ++i) {
    if (t.shape[i] < 0) refuse(op, argument, "has the negative extent " + std::to_string(t.shape[i]));
  }
  if (!t.data && t.numel() > 0) refuse(op, argument, "has a null address");
  return t;
}

}  // namespace

DataType parse_dtype(const std::string& name) {
  for (const DataType t : {kFloat32, kFloat16, kBFloat16, kFloat64, kInt8, kInt32, kInt64, kUInt8, kUInt32, kUInt64, kBool}) {
    if (dtype_name(t) == name) return t;
  }
  throw Error(ErrorKind::kInvalidArgument, "unknown dtype '" + name + "'");
}

Tensor read_tensor(py::handle object, const char* op, const char* argument) {
  PyTypeObject* type = Py_TYPE(object.ptr());
  static PyTypeObject* const view_type = reinterpret_cast<PyTypeObject*>(py::type::of<View>().ptr());
  if (type == view_type) return object.cast<const View&>().tensor;
  if (object.is_none()) refuse(op, argument, "is None; a tensor is needed");
  try {
    if (const dlpack::ExchangeTable* table = exchange_table(type)) {
      dlpack::BorrowedTensor borrowed{};
      if (table->tensor_from_py_object_no_sync(object.ptr(), &borrowed) != 0) throw py::error_already_set();
      return validated(from_dlpack(borrowed, op, argument), op, argument);
    }
    if (py::isinstance<py::array>(object)) return from_numpy(py::reinterpret_borrow<py::array>(object), op, argument);
    if (py::hasattr(object, "data_ptr")) return validated(from_accessors(object, op, argument), op, argument);
  } catch (py::error_already_set& raised) {
    if (!raised.matches(PyExc_Exception)) throw;  // an interrupt is not about the tensor
    refuse(op, argument, "cannot be read as a tensor: " + std::string(py::str(raised.value())));
  } catch (const py::cast_error&) {
    refuse(op, argument, "cannot be read as a tensor: its data_ptr, shape or strides are no whole numbers");
  }
  refuse(op, argument, "is a " + std::string(type->tp_name) + "; a tensor (framework, NumPy or accel view) is needed");
}

}  // namespace accel::py_bindings
