// A borrowed view of a tensor: where it lies, its shape and its strides. No ownership, no framework.
//
// Invariant: strides count elements, as in DLPack; a view is valid while its owner is held by the caller.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace accel {

// DLPack's type codes (dlpack.h, DLDataTypeCode).
enum class TypeCode : uint8_t { kInt = 0, kUInt = 1, kFloat = 2, kBFloat = 4, kBool = 6 };

struct DataType {
  TypeCode code;
  uint8_t bits;
  constexpr bool operator==(const DataType& other) const { return code == other.code && bits == other.bits; }
  constexpr bool operator!=(const DataType& other) const { return !(*this == other); }
  constexpr int64_t bytes() const { return bits / 8; }
};

inline constexpr DataType kFloat32{TypeCode::kFloat, 32};
inline constexpr DataType kFloat16{TypeCode::kFloat, 16};
inline constexpr DataType kBFloat16{TypeCode::kBFloat, 16};
inline constexpr DataType kFloat64{TypeCode::kFloat, 64};
inline constexpr DataType kInt8{TypeCode::kInt, 8};
inline constexpr DataType kInt32{TypeCode::kInt, 32};
inline constexpr DataType kInt64{TypeCode::kInt, 64};
inline constexpr DataType kUInt8{TypeCode::kUInt, 8};
inline constexpr DataType kUInt32{TypeCode::kUInt, 32};
inline constexpr DataType kUInt64{TypeCode::kUInt, 64};
inline constexpr DataType kBool{TypeCode::kBool, 8};

// DLPack's device code of host memory (dlpack.h, kDLCPU).
inline constexpr int32_t kHostDevice = 1;

struct Tensor {
  static constexpr int kMaxDims = 8;

  std::byte* data = nullptr;
  DataType dtype = kFloat32;
  int32_t device_type = kHostDevice;
  int32_t ndim = 0;
  bool readonly = false;
  int64_t shape[kMaxDims] = {};
  int64_t strides[kMaxDims] = {};

  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data);
  }
  int64_t numel() const {
    int64_t n = 1;
    for (int32_t i = 0; i < ndim; ++i) n *= shape[i];
    return n;
  }
  int64_t nbytes() const { return numel() * dtype.bytes(); }

  // Dense in row-major order from dimension `from` on (dimensions of size 1 have no say).
  bool contiguous(int32_t from = 0) const {
    if (numel() == 0) return true;  // NumPy gives the dimensions of an empty array strides of 0
    int64_t expected = 1;
    for (int32_t i = ndim - 1; i >= from; --i) {
      if (shape[i] != 1 && strides[i] != expected) return false;
      expected *= shape[i];
    }
    return true;
  }
  void set_row_major() {
    int64_t stride = 1;
    for (int32_t i = ndim - 1; i >= 0; --i) {
      strides[i] = stride;
      stride *= shape[i];
    }
  }
  std::string shape_text() const {
    std::string text = "[";
    for (int32_t i = 0; i < ndim; ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
    return text + "]";
  }
};

inline std::string dtype_name(DataType t) {
  switch (t.code) {
    case TypeCode::kInt:
      return "int" + std::to_string(t.bits);
    case TypeCode::kUInt:
      return "uint" + std::to_string(t.bits);
    case TypeCode::kFloat:
      return "float" + std::to_string(t.bits);
    case TypeCode::kBFloat:
      return "bfloat" + std::to_string(t.bits);
    case TypeCode::kBool:
      return "bool";
  }
  return "code " + std::to_string(static_cast<int>(t.code));
}

}  // namespace accel
