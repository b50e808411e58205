// Working memory of the kernels: one growing, 64-byte aligned buffer a thread and purpose.
//
// Invariant: a buffer is valid until the same thread asks for the same purpose again. kShared is for what one kernel call
// lays out for all its chunks, kLocal for what a chunk needs; so a caller that takes part in the work has both.
#pragma once

#include <cstddef>

namespace accel::cpu {

enum class Scratch { kShared, kLocal };

// At least `bytes`, uninitialised. Throws std::bad_alloc.
void* scratch(Scratch purpose, size_t bytes);

}  // namespace accel::cpu
