// The host runtime, and a log of what was launched: for tests that ask whether an op touches what it declared.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "accel/runtime.h"

namespace accel::recorder {

// An access as it was declared; `index` is empty where the ranges are evenly spaced.
struct Access {
  const void* base;
  size_t bytes;
  int64_t stride;
  std::vector<int32_t> index;
  size_t count;
  AccelAccessMode mode;
};

struct Launch {
  std::string op;
  std::vector<Access> accesses;
};

// The host table with tracks_accesses set and a launch that logs first.
const AccelRuntime* runtime();

// Everything launched through it since the last call.
std::vector<Launch> take();

}  // namespace accel::recorder
