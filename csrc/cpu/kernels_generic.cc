// Kernels for the baseline of the target: plain C++ on x86-64, NEON on AArch64 (where it is the baseline).
#include "table.inl"
#include "tables.h"

namespace accel::cpu {
namespace {
#if defined(ACCEL_SIMD_NEON)
constexpr KernelTable kTable = make_table("neon");
#else
constexpr KernelTable kTable = make_table("generic");
#endif
}  // namespace

const KernelTable* const kGenericKernels = &kTable;

}  // namespace accel::cpu
