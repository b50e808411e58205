#include "block_digest.h"

#include <algorithm>
#include <cstring>
#include <iterator>

namespace accel::core {
namespace {

constexpr size_t kParentAt = 12, kTokensAt = kParentAt + 32;

void put_u32(uint8_t* at, uint32_t value) {
  for (size_t i = 0; i < 4; ++i) at[i] = static_cast<uint8_t>(value >> (8 * i));
}

}  // namespace

BlockHasher::BlockHasher(int32_t block_size, Sha256Compress compress) : block_size_(block_size), compress_(compress) {
  const size_t length = kTokensAt + 4 * static_cast<size_t>(block_size);
  record_.resize((length + 1 + 8 + 63) / 64 * 64);  // 0x80, zeros and the length in bits up to whole chunks
  const uint8_t head[] = {'a', 'k', 'v', 'b', 1, 0, 0, 0};
  std::copy(std::begin(head), std::end(head), record_.begin());
  put_u32(record_.data() + 8, static_cast<uint32_t>(block_size));
  record_[length] = 0x80;
  const uint64_t bits = 8 * static_cast<uint64_t>(length);
  for (size_t i = 0; i < 8; ++i) record_[record_.size() - 1 - i] = static_cast<uint8_t>(bits >> (8 * i));
}

Digest BlockHasher::next(const Digest& parent, const int32_t* tokens) {
  uint8_t* const at = record_.data() + kTokensAt;
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
  std::memcpy(at, tokens, 4 * static_cast<size_t>(block_size_));
#else
  for (int32_t i = 0; i < block_size_; ++i) put_u32(at + 4 * i, static_cast<uint32_t>(tokens[i]));
#endif
  std::memcpy(record_.data() + kParentAt, parent.data(), parent.size());
  return sha256_padded(record_.data(), record_.size() / 64, compress_);
}

}  // namespace accel::core
