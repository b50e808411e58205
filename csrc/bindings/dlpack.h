// The part of DLPack 1.x that crossing from a framework's tensor needs: a borrowed DLTensor through the exchange table that a
// tensor type carries in its attribute __dlpack_c_exchange_api__. Layout after dlpack.h of DLPack 1.3 (dmlc/dlpack); declared
// here so that building needs no header of DLPack or of any framework.
#pragma once

#include <cstdint>

namespace accel::dlpack {

struct Device {
  int32_t type;
  int32_t id;
};

struct Type {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};

struct BorrowedTensor {
  void* data;
  Device device;
  int32_t ndim;
  Type dtype;
  int64_t* shape;
  int64_t* strides;  // may be null: row-major
  uint64_t byte_offset;
};

struct ExchangeTable {
  uint32_t major;
  uint32_t minor;
  ExchangeTable* previous;
  void* managed_tensor_allocator;
  void* managed_tensor_from_py_object_no_sync;
  void* managed_tensor_to_py_object_no_sync;
  // 0 on success, -1 with a Python error set. Null where the framework does not offer it.
  int (*tensor_from_py_object_no_sync)(void* py_object, BorrowedTensor* out);
  void* current_work_stream;
};

inline constexpr uint32_t kMajor = 1;
inline constexpr const char* kAttribute = "__dlpack_c_exchange_api__";
inline constexpr const char* kCapsule = "dlpack_exchange_api";

}  // namespace accel::dlpack
