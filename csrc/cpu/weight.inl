// Reading packed weights: 32 columns of one k at a time, whatever the format (drawn in kernels.h).
//
// A reader is opened on a block of 32 k of one panel, then asked for rows of it. Floats have blocks too, so that every
// format is walked in the same way; only theirs may be short at the end of k.
#pragma once

#include "kernels.h"
#include "simd.h"

namespace accel::cpu {
namespace {

template <WeightFormat F>
struct PanelReader;

template <>
struct PanelReader<WeightFormat::kF32> {
  static constexpr int64_t kBlockBytes = 32 * 32 * 4;
  const float* rows;
  ACCEL_MEMBER void open(const std::byte* block) { rows = reinterpret_cast<const float*>(block); }
  ACCEL_MEMBER void row(int64_t i, f32x16& a, f32x16& b) const {
    a = load(rows + i * 32);
    b = load(rows + i * 32 + 16);
  }
};

template <>
struct PanelReader<WeightFormat::kBF16> {
  static constexpr int64_t kBlockBytes = 32 * 32 * 2;
  const uint16_t* rows;
  ACCEL_MEMBER void open(const std::byte* block) { rows = reinterpret_cast<const uint16_t*>(block); }
  ACCEL_MEMBER void row(int64_t i, f32x16& a, f32x16& b) const {
    a = load_bf16(rows + i * 32);
    b = load_bf16(rows + i * 32 + 16);
  }
};

template <>
struct PanelReader<WeightFormat::kF16> {
  static constexpr int64_t kBlockBytes = 32 * 32 * 2;
  const uint16_t* rows;
  ACCEL_MEMBER void open(const std::byte* block) { rows = reinterpret_cast<const uint16_t*>(block); }
  ACCEL_MEMBER void row(int64_t i, f32x16& a, f32x16& b) const {
    a = load_f16(rows + i * 32);
    b = load_f16(rows + i * 32 + 16);
  }
};

template <>
struct PanelReader<WeightFormat::kQ8> {
  static constexpr int64_t kBlockBytes = 64 + 32 * 32;
  f32x16 scale_a, scale_b;
  const int8_t* rows;
  ACCEL_MEMBER void open(const std::byte* block) {
    const auto* scales = reinterpret_cast<const uint16_t*>(block);
    scale_a = load_f16(scales);
    scale_b = load_f16(scales + 16);
    rows = reinterpret_cast<const int8_t*>(block + 64);
  }
  ACCEL_MEMBER void row(int64_t i, f32x16& a, f32x16& b) const {
    a = mul(load_i8(rows + i * 32), scale_a);
    b = mul(load_i8(rows + i * 32 + 16), scale_b);
  }
};

template <>
struct PanelReader<WeightFormat::kQ4> {
  static constexpr int64_t kBlockBytes = 128 + 32 * 16;
  f32x16 scale_a, scale_b, minimum_a, minimum_b;
  const uint8_t* rows;
  ACCEL_MEMBER void open(const std::byte* block) {
    const auto* scales = reinterpret_cast<const uint16_t*>(block);
    scale_a = load_f16(scales);
    scale_b = load_f16(scales + 16);
    minimum_a = load_f16(scales + 32);
    minimum_b = load_f16(scales + 48);
    rows = reinterpret_cast<const uint8_t*>(block + 128);
  }
  ACCEL_MEMBER void row(int64_t i, f32x16& a, f32x16& b) const {
    f32x16 low, high;
    load_nibbles(rows + i * 16, low, high);
    a = fma(low, scale_a, minimum_a);
    b = fma(high, scale_b, minimum_b);
  }
};

template <WeightFormat F>
ACCEL_INLINE int64_t panel_bytes(int64_t k) {
  return (k / kQuantBlock) * PanelReader<F>::kBlockBytes + (k % kQuantBlock) * (PanelReader<F>::kBlockBytes / kQuantBlock);
}

// Values of rows [first, first + count) of k of one panel, as float32 [count, 32]. first % 32 == 0.
template <WeightFormat F>
void expand_panel(float* out, const std::byte* panel, int64_t first, int64_t count) {
  PanelReader<F> reader;
  for (int64_t done = 0; done < count; done += kQuantBlock) {
    reader.open(panel + (first + done) / kQuantBlock * PanelReader<F>::kBlockBytes);
    const int64_t rows = count - done < kQuantBlock ? count - done : kQuantBlock;
    for (int64_t i = 0; i < rows; ++i) {
      f32x16 a, b;
      reader.row(i, a, b);
      store(out + (done + i) * 32, a);
      store(out + (done + i) * 32 + 16, b);
    }
  }
}

}  // namespace
}  // namespace accel::cpu
