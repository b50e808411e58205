#include "host_memory.h"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <string>

namespace accel::host {
namespace {

bool read_number(const std::string& path, size_t* value) {
  std::ifstream file(path);
  uint64_t number = 0;
  if (!(file >> number)) return false;  // "max" is no number: no limit
  *value = number;
  return true;
}

bool read_meminfo(MemoryInfo* info) {
  std::ifstream file("/proc/meminfo");
  std::string key, unit;
  uint64_t kib = 0;
  while (file >> key >> kib) {
    std::getline(file, unit);
    if (key == "MemTotal:") info->total = kib * 1024;
    if (key == "MemAvailable:") info->free = kib * 1024;
  }
  return info->total != 0;
}

// The folder of this process's control group in the unified hierarchy, "" when there is none.
std::string cgroup_folder() {
  std::ifstream file("/proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    if (line.rfind("0::", 0) == 0) return "/sys/fs/cgroup" + line.substr(3);
  }
  return "";
}

// Pages of files that the kernel drops before it would refuse memory: charged to the group, but free in all but name. Without
// them a group that has just read a model from disk would seem full.
size_t reclaimable(const std::string& stat_file, const std::string& wanted) {
  std::ifstream file(stat_file);
  std::string key;
  uint64_t value = 0;
  while (file >> key >> value) {
    if (key == wanted) return value;
  }
  return 0;
}

void cut(MemoryInfo* info, size_t limit, size_t used, size_t cached) {
  used -= std::min(used, cached);
  info->total = std::min(info->total, limit);  // "no limit" is a huge number in version 1
  info->free = std::min(info->free, limit > used ? limit - used : 0);
}

// A limit may be set at any level above the process, so the tightest one on the way up counts.
void apply_cgroup_v2(MemoryInfo* info) {
  std::string folder = cgroup_folder();
  while (folder.size() >= std::string("/sys/fs/cgroup").size()) {
    size_t limit = 0, used = 0;
    if (read_number(folder + "/memory.max", &limit) && read_number(folder + "/memory.current", &used)) {
      cut(info, limit, used, reclaimable(folder + "/memory.stat", "inactive_file"));
    }
    folder.resize(folder.find_last_of('/'));
  }
}

void apply_cgroup_v1(MemoryInfo* info) {
  const std::string folder = "/sys/fs/cgroup/memory";
  size_t limit = 0, used = 0;
  if (!read_number(folder + "/memory.limit_in_bytes", &limit) || !read_number(folder + "/memory.usage_in_bytes", &used)) return;
  cut(info, limit, used, reclaimable(folder + "/memory.stat", "total_inactive_file"));
}

}  // namespace

bool memory_info(MemoryInfo* info) {
  if (!read_meminfo(info)) return false;
  apply_cgroup_v2(info);
  apply_cgroup_v1(info);
  return true;
}

}  // namespace accel::host
