// Where isa.cc finds the table each kernels_*.cc leaves; null where the build lacks the set. Constants, so that asking
// whether a set exists runs no code compiled for it.
#pragma once

#include "kernels.h"

namespace accel::cpu {

extern const KernelTable* const kGenericKernels;
extern const KernelTable* const kAvx2Kernels;
extern const KernelTable* const kAvx512Kernels;

}  // namespace accel::cpu
