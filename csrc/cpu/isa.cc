// Which instruction sets this machine has: what the processor offers (cpuid) and the operating system saves (xgetbv). A
// processor flag alone is not enough: a kernel that does not save the upper registers makes the first use of them fault.
#include "tables.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace accel::cpu {
namespace {

#if defined(__x86_64__)

uint64_t saved_state() {
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low | (static_cast<uint64_t>(high) << 32);
}

Isa detect() {
  unsigned a, b, c, d;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0) return Isa::kGeneric;
  constexpr unsigned kFma = 1u << 12, kOsxsave = 1u << 27, kAvx = 1u << 28, kF16c = 1u << 29;
  constexpr unsigned kNeeded = kFma | kOsxsave | kAvx | kF16c;
  if ((c & kNeeded) != kNeeded) return Isa::kGeneric;
  const uint64_t state = saved_state();
  constexpr uint64_t kYmm = 0x6, kZmm = 0xe6;  // XMM and YMM; and the mask registers, the upper halves, ZMM 16 to 31
  if ((state & kYmm) != kYmm || __get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return Isa::kGeneric;
  constexpr unsigned kAvx2 = 1u << 5, kAvx512 = (1u << 16) | (1u << 17) | (1u << 30) | (1u << 31);  // F, DQ, BW, VL
  if ((b & kAvx2) == 0) return Isa::kGeneric;
  return (b & kAvx512) == kAvx512 && (state & kZmm) == kZmm ? Isa::kAvx512 : Isa::kAvx2;
}

// Null where this build lacks the set.
const KernelTable* built(Isa isa) {
  switch (isa) {
    case Isa::kAvx512:
      return kAvx512Kernels;
    case Isa::kAvx2:
      return kAvx2Kernels;
    case Isa::kGeneric:
      break;
  }
  return kGenericKernels;
}

#else

Isa detect() { return Isa::kGeneric; }

// Other processors need not even compile the units of x86 sets.
const KernelTable* built(Isa isa) { return isa == Isa::kGeneric ? kGenericKernels : nullptr; }

#endif

}  // namespace

Isa detect_isa() {
  static const Isa isa = [] {
    Isa best = detect();
    if (best == Isa::kAvx512 && built(best) == nullptr) best = Isa::kAvx2;
    if (best == Isa::kAvx2 && built(best) == nullptr) best = Isa::kGeneric;
    return best;
  }();
  return isa;
}

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kGeneric:
      break;
  }
  return kGenericKernels->isa;
}

const KernelTable* kernels(Isa isa) {
  static const Isa machine = detect();
  if (static_cast<int>(isa) > static_cast<int>(machine)) return nullptr;
  return built(isa);
}

}  // namespace accel::cpu
