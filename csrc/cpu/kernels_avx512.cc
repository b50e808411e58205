// Kernels for AVX-512: compiled with -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx2 -mfma -mf16c.
// Without those flags (another processor family, a compiler that lacks them) the table is null.
#include "tables.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__) && defined(__FMA__)
#include "table.inl"
#endif

namespace accel::cpu {

#if defined(ACCEL_SIMD_AVX512)
namespace {
constexpr KernelTable kTable = make_table("avx512");
}  // namespace
const KernelTable* const kAvx512Kernels = &kTable;
#else
const KernelTable* const kAvx512Kernels = nullptr;
#endif

}  // namespace accel::cpu
