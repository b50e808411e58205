// The floating-point environment of a kernel: round to nearest, denormals kept, no traps.
//
// Why: frameworks switch flush-to-zero on in threads they own, and a result must not depend on who called. The guard sets the
// default for its scope and puts the caller's setting back.
#pragma once

#include <cstdint>

namespace accel::cpu {

class DefaultFloatEnvironment {
 public:
  DefaultFloatEnvironment() : saved_(read()) {
    if (saved_ != kDefault) write(kDefault);
  }
  ~DefaultFloatEnvironment() {
    if (saved_ != kDefault) write(saved_);
  }
  DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;
  DefaultFloatEnvironment& operator=(const DefaultFloatEnvironment&) = delete;

 private:
#if defined(__x86_64__)
  // MXCSR: all exceptions masked; its low six bits are sticky flags, no setting.
  static constexpr uint64_t kDefault = 0x1f80;
  static uint64_t read() {
    uint32_t value;
    __asm__ volatile("stmxcsr %0" : "=m"(value));
    return value & ~0x3fu;
  }
  static void write(uint64_t value) {
    const auto word = static_cast<uint32_t>(value);
    __asm__ volatile("ldmxcsr %0" : : "m"(word));
  }
#elif defined(__aarch64__)
  static constexpr uint64_t kDefault = 0;  // FPCR
  static uint64_t read() {
    uint64_t value;
    __asm__ volatile("mrs %0, fpcr" : "=r"(value));
    return value;
  }
  static void write(uint64_t value) { __asm__ volatile("msr fpcr, %0" : : "r"(value)); }
#else
  static constexpr uint64_t kDefault = 0;
  static uint64_t read() { return kDefault; }
  static void write(uint64_t) {}
#endif
  uint64_t saved_;
};

}  // namespace accel::cpu
