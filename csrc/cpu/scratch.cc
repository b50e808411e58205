#include "scratch.h"

#include <cstdint>
#include <cstdlib>
#include <new>

namespace accel::cpu {
namespace {

struct Buffer {
  void* data = nullptr;
  size_t bytes = 0;
  ~Buffer() { std::free(data); }
};

thread_local Buffer buffers[2];

}  // namespace

void* scratch(Scratch purpose, size_t bytes) {
  Buffer& buffer = buffers[static_cast<int>(purpose)];
  if (buffer.bytes < bytes) {
    const size_t rounded = (bytes + bytes / 4 + 4095) / 4096 * 4096;
    std::free(buffer.data);
    buffer.bytes = 0;
    buffer.data = std::aligned_alloc(64, rounded);
    if (buffer.data == nullptr) throw std::bad_alloc();
    buffer.bytes = rounded;
  }
  return buffer.data;
}

}  // namespace accel::cpu
