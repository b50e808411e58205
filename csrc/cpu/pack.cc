// Weights from rows (as files hold them) to panels (as the kernels read them; drawn in kernels.h).
//
// Invariant: packing changes no value, except rounding to a narrower float that was asked for. Q4_0 becomes scale d and
// minimum -8 d, exact in half precision unless |d| > 65504 / 8, which pack_rows refuses before it has written anything.
#include <cstring>

#include "fp_env.h"
#include "half.h"
#include "kernels.h"

namespace accel::cpu {
namespace {

constexpr int64_t kQ8BlockBytes = kPanel * 2 + kQuantBlock * kPanel;
constexpr int64_t kQ4BlockBytes = kPanel * 4 + kQuantBlock * kPanel / 2;

// Bytes of one block of 32 in a GGUF row.
constexpr int64_t kQ4_0Bytes = 2 + 16, kQ4_1Bytes = 4 + 16, kQ8_0Bytes = 2 + 32;

float element(RowEncoding encoding, const std::byte* row, int64_t i) {
  if (encoding == RowEncoding::kF32) {
    float value;
    std::memcpy(&value, row + i * 4, sizeof value);
    return value;
  }
  uint16_t half;
  std::memcpy(&half, row + i * 2, sizeof half);
  return encoding == RowEncoding::kBF16 ? bf16_to_f32(half) : f16_to_f32(half);
}

template <typename Store>
void each_element(RowEncoding encoding, const std::byte* row, int64_t k, const Store& put) {
  if (encoding == RowEncoding::kF32) {
    for (int64_t i = 0; i < k; ++i) put(i, element(RowEncoding::kF32, row, i));
  } else if (encoding == RowEncoding::kBF16) {
    for (int64_t i = 0; i < k; ++i) put(i, element(RowEncoding::kBF16, row, i));
  } else {
    for (int64_t i = 0; i < k; ++i) put(i, element(RowEncoding::kF16, row, i));
  }
}

void pack_float_row(WeightFormat format, int64_t k, std::byte* panel, int64_t column, RowEncoding encoding,
                    const std::byte* row) {
  auto* halves = reinterpret_cast<uint16_t*>(panel) + column;
  const bool same = (format == WeightFormat::kBF16 && encoding == RowEncoding::kBF16) ||
                    (format == WeightFormat::kF16 && encoding == RowEncoding::kF16);
  if (same) {  // bytes as they are, NaN payloads too
    for (int64_t i = 0; i < k; ++i) std::memcpy(halves + i * kPanel, row + i * 2, 2);
  } else if (format == WeightFormat::kF32) {
    auto* floats = reinterpret_cast<float*>(panel) + column;
    each_element(encoding, row, k, [&](int64_t i, float value) { floats[i * kPanel] = value; });
  } else if (format == WeightFormat::kBF16) {
    each_element(encoding, row, k, [&](int64_t i, float value) { halves[i * kPanel] = f32_to_bf16(value); });
  } else {
    each_element(encoding, row, k, [&](int64_t i, float value) { halves[i * kPanel] = f32_to_f16(value); });
  }
}

void pack_q8_row(int64_t k, std::byte* panel, int64_t column, const std::byte* row) {
  for (int64_t b = 0; b < k / kQuantBlock; ++b) {
    std::byte* block = panel + b * kQ8BlockBytes;
    std::memcpy(block + column * 2, row, 2);
    for (int64_t i = 0; i < kQuantBlock; ++i) block[kPanel * 2 + i * kPanel + column] = row[2 + i];
    row += kQ8_0Bytes;
  }
}

void put_nibble(std::byte* rows, int64_t i, int64_t column, unsigned value) {
  std::byte& pair = rows[i * 16 + column % 16];
  const int shift = column < 16 ? 0 : 4;
  pair = (pair & static_cast<std::byte>(0xf0u >> shift)) | static_cast<std::byte>(value << shift);
}

void pack_q4_row(int64_t k, std::byte* panel, int64_t column, bool with_minimum, const std::byte* row) {
  for (int64_t b = 0; b < k / kQuantBlock; ++b) {
    std::byte* block = panel + b * kQ4BlockBytes;
    uint16_t scale, minimum;
    std::memcpy(&scale, row, 2);
    if (with_minimum) {
      std::memcpy(&minimum, row + 2, 2);
    } else {
      minimum = f32_to_f16(-8.0f * f16_to_f32(scale));
    }
    std::memcpy(block + column * 2, &scale, 2);
    std::memcpy(block + kPanel * 2 + column * 2, &minimum, 2);
    const std::byte* quants = row + (with_minimum ? 4 : 2);
    for (int64_t i = 0; i < 16; ++i) {
      const auto pair = std::to_integer<unsigned>(quants[i]);
      put_nibble(block + kPanel * 4, i, column, pair & 15u);
      put_nibble(block + kPanel * 4, i + 16, column, pair >> 4);
    }
    row += with_minimum ? kQ4_1Bytes : kQ4_0Bytes;
  }
}

// Whether every scale d of Q4_0 blocks has an exact half -8 d.
bool scales_fit(int64_t blocks, const std::byte* block) {
  for (int64_t b = 0; b < blocks; ++b, block += kQ4_0Bytes) {
    uint16_t scale;
    std::memcpy(&scale, block, 2);
    if ((scale & 0x7c00u) != 0x7c00u && f16_to_f32(scale & 0x7fffu) > 65504.0f / 8) return false;
  }
  return true;
}

size_t panel_size(WeightFormat format, int64_t k) {
  switch (format) {
    case WeightFormat::kF32:
      return static_cast<size_t>(k * kPanel) * 4;
    case WeightFormat::kBF16:
    case WeightFormat::kF16:
      return static_cast<size_t>(k * kPanel) * 2;
    case WeightFormat::kQ8:
      return static_cast<size_t>(k / kQuantBlock * kQ8BlockBytes);
    case WeightFormat::kQ4:
      return static_cast<size_t>(k / kQuantBlock * kQ4BlockBytes);
  }
  return 0;
}

// Columns n … of the last panel, which no row fills.
void clear_padding(WeightFormat format, int64_t n, int64_t k, std::byte* panel) {
  const std::byte nothing[kQ8_0Bytes > kQ4_1Bytes ? kQ8_0Bytes : kQ4_1Bytes] = {};
  for (int64_t column = n % kPanel; column != 0 && column < kPanel; ++column) {
    if (format == WeightFormat::kQ8) {
      for (int64_t b = 0; b < k / kQuantBlock; ++b) pack_q8_row(kQuantBlock, panel + b * kQ8BlockBytes, column, nothing);
    } else if (format == WeightFormat::kQ4) {
      for (int64_t b = 0; b < k / kQuantBlock; ++b) pack_q4_row(kQuantBlock, panel + b * kQ4BlockBytes, column, true, nothing);
    } else {
      const int64_t bytes = format == WeightFormat::kF32 ? 4 : 2;
      for (int64_t i = 0; i < k; ++i) std::memset(panel + (i * kPanel + column) * bytes, 0, static_cast<size_t>(bytes));
    }
  }
}

}  // namespace

size_t packed_bytes(WeightFormat format, int64_t n, int64_t k) {
  return static_cast<size_t>((n + kPanel - 1) / kPanel) * panel_size(format, k);
}

size_t row_bytes(RowEncoding encoding, int64_t k) {
  switch (encoding) {
    case RowEncoding::kF32:
      return static_cast<size_t>(k) * 4;
    case RowEncoding::kBF16:
    case RowEncoding::kF16:
      return static_cast<size_t>(k) * 2;
    case RowEncoding::kQ4_0:
      return static_cast<size_t>(k / kQuantBlock * kQ4_0Bytes);
    case RowEncoding::kQ4_1:
      return static_cast<size_t>(k / kQuantBlock * kQ4_1Bytes);
    case RowEncoding::kQ8_0:
      return static_cast<size_t>(k / kQuantBlock * kQ8_0Bytes);
  }
  return 0;
}

namespace {

// Not inlined: arithmetic must not move across the switch of the floating-point environment.
__attribute__((noinline)) void place_rows(WeightFormat format, int64_t n, int64_t k, void* data, RowEncoding encoding,
                                          const void* rows, int64_t count, const int64_t* targets, int64_t first) {
  const size_t panel_bytes = panel_size(format, k), source_bytes = row_bytes(encoding, k);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t target = targets != nullptr ? targets[i] : first + i;
    auto* panel = static_cast<std::byte*>(data) + static_cast<size_t>(target / kPanel) * panel_bytes;
    const auto* row = static_cast<const std::byte*>(rows) + static_cast<size_t>(i) * source_bytes;
    const int64_t column = target % kPanel;
    if (format == WeightFormat::kQ8) {
      pack_q8_row(k, panel, column, row);
    } else if (format == WeightFormat::kQ4) {
      pack_q4_row(k, panel, column, encoding == RowEncoding::kQ4_1, row);
    } else {
      pack_float_row(format, k, panel, column, encoding, row);
    }
    if (target == n - 1) clear_padding(format, n, k, panel);
  }
}

}  // namespace

bool pack_rows(WeightFormat format, int64_t n, int64_t k, void* data, RowEncoding encoding, const void* rows, int64_t count,
               const int64_t* targets, int64_t first) {
  const DefaultFloatEnvironment environment;
  if (encoding == RowEncoding::kQ4_0 && !scales_fit(count * (k / kQuantBlock), static_cast<const std::byte*>(rows)))
    return false;
  place_rows(format, n, k, data, encoding, rows, count, targets, first);
  return true;
}

}  // namespace accel::cpu
