// Kernels for AVX2: compiled with -mavx2 -mfma -mf16c.
// Without those flags (another processor family, a compiler that lacks them) the table is null.
#include "tables.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "table.inl"
#endif

namespace accel::cpu {

#if defined(ACCEL_SIMD_AVX2)
namespace {
constexpr KernelTable kTable = make_table("avx2");
}  // namespace
const KernelTable* const kAvx2Kernels = &kTable;
#else
const KernelTable* const kAvx2Kernels = nullptr;
#endif

}  // namespace accel::cpu
