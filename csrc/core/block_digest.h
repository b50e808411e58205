// The identity of a block: SHA-256 over a canonical record. accel/cache/identity.py has the same definition in Python.
//
//   "akvb" | u8 schema 1 | u8 0 | u16 extras 0 | u32 tokens | parent digest 32 | tokens u32 …      (integers little-endian)
//
// The parent of the first block is the digest of the namespace, so a digest names the block and all that lies before it.
//
// Invariant: the record of a block size has one length, so its header and its padding are written once.
#pragma once

#include <cstdint>
#include <vector>

#include "sha256.h"

namespace accel::core {

class BlockHasher {
 public:
  // `compress` is there for tests, which hold one implementation against the other.
  explicit BlockHasher(int32_t block_size, Sha256Compress compress = sha256_compress());
  // The digest of the block of tokens [tokens, tokens + block_size) that follows `parent`. Not for two threads at a time.
  Digest next(const Digest& parent, const int32_t* tokens);

 private:
  int32_t block_size_;
  Sha256Compress compress_;
  std::vector<uint8_t> record_;
};

}  // namespace accel::core
