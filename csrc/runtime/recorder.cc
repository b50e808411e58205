#include "recorder.h"

#include <mutex>
#include <utility>

#include "host.h"

namespace accel::recorder {
namespace {

std::mutex g_mutex;
std::vector<Launch> g_launches;

AccelStatus launch(AccelStream* stream, const AccelLaunch* launch) {
  Launch entry{launch->op, {}};
  for (size_t i = 0; i < launch->num_accesses; ++i) {
    const AccelAccess& a = launch->accesses[i];
    std::vector<int32_t> index;
    if (a.index) index.assign(a.index, a.index + a.count);
    entry.accesses.push_back({a.base, a.bytes, a.stride, std::move(index), a.count, a.mode});
  }
  {
    std::lock_guard<std::mutex> lock(g_mutex);
    g_launches.push_back(std::move(entry));
  }
  return host::runtime()->launch(stream, launch);
}

AccelRuntime recording() {
  AccelRuntime table = *host::runtime();
  table.name = "host, recorded";
  table.tracks_accesses = 1;
  table.launch = launch;
  return table;
}

}  // namespace

const AccelRuntime* runtime() {
  static const AccelRuntime table = recording();
  return &table;
}

std::vector<Launch> take() {
  std::lock_guard<std::mutex> lock(g_mutex);
  return std::exchange(g_launches, {});
}

}  // namespace accel::recorder
