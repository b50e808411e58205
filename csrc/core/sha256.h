// SHA-256 (FIPS 180-4), one implementation in portable C++ and one with the SHA instructions of x86-64, chosen at run time.
//
// Invariant: both give the same digest on every machine; tests/cache holds them against hashlib.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace accel::core {

using Digest = std::array<uint8_t, 32>;

// Folds `count` chunks of 64 bytes into the eight words of `state`.
using Sha256Compress = void (*)(uint32_t* state, const uint8_t* data, size_t count);

void sha256_compress_portable(uint32_t* state, const uint8_t* data, size_t count);
#if defined(__x86_64__)
// csrc/core/sha256_x86.cc; call it only where sha256_has_instructions() is true.
void sha256_compress_x86(uint32_t* state, const uint8_t* data, size_t count);
#endif

bool sha256_has_instructions();
// The fastest that this machine has.
Sha256Compress sha256_compress();

// The digest of a message that is padded already: `count` chunks of 64 bytes, 0x80, zeros and the length at the end.
Digest sha256_padded(const uint8_t* data, size_t count, Sha256Compress compress);

}  // namespace accel::core
