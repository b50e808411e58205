// The C++ side of accel/errors.py: an exception that carries the kind, the op and the way out.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace accel {

// Names of the Python classes of the same name.
enum class ErrorKind {
  kAbiMismatch,
  kUnsupported,
  kInvalidArgument,
  kOutOfMemory,
  kTimeout,
  kAsyncFailure,
  kDeviceLost,
  kInternal
};

class Error : public std::runtime_error {
 public:
  Error(ErrorKind error_kind, const std::string& message, std::string op_name = "", std::string way_out = "")
      : std::runtime_error(message), kind(error_kind), op(std::move(op_name)), hint(std::move(way_out)) {}
  ErrorKind kind;
  std::string op;
  std::string hint;
};

}  // namespace accel
