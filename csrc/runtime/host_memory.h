// What the operating system says about memory: the machine's, cut to what this process's control group may use.
#pragma once

#include <cstddef>

namespace accel::host {

struct MemoryInfo {
  size_t free = 0;
  size_t total = 0;
};

// False where neither /proc/meminfo nor a control group can be read.
bool memory_info(MemoryInfo* info);

}  // namespace accel::host
