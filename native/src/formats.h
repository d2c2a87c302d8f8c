// What a block of each type looks like, and the parts of unpacking that every path shares.
//
// Layouts are those of ggml (ggml-common.h, block_q8_0 and so on); the arithmetic, and its order, is that of
// the Python package gguf (gguf/quants.py), which the results equal bit for bit. A product of scale,
// sub-scale and quant has at most 24 significant bits, so it is exact, and it is never subnormal: only the
// one addition or subtraction rounds, and neither flush-to-zero nor a fused multiply-add could change it.
//
// Everything here has internal linkage on purpose: this header is compiled with AVX2 in one file and without
// in another, and a function shared by the linker could carry AVX2 code to a processor that has none.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "trainyard/kernels.h"

namespace trainyard {
namespace {

struct F16 {
    static constexpr std::int32_t type = TRAINYARD_F16;
    static constexpr std::size_t elements = 1, bytes = 2;
};

struct BF16 {
    static constexpr std::int32_t type = TRAINYARD_BF16;
    static constexpr std::size_t elements = 1, bytes = 2;
};

struct Q4_0 {  // half scale; 16 bytes: low nibbles are elements 0 to 15, high nibbles 16 to 31
    static constexpr std::int32_t type = TRAINYARD_Q4_0;
    static constexpr std::size_t elements = 32, bytes = 18, quants = 2;
};

struct Q4_1 {  // half scale, half minimum; nibbles as in Q4_0
    static constexpr std::int32_t type = TRAINYARD_Q4_1;
    static constexpr std::size_t elements = 32, bytes = 20, minimum = 2, quants = 4;
};

struct Q5_0 {  // half scale; 32 fifth bits; nibbles as in Q4_0
    static constexpr std::int32_t type = TRAINYARD_Q5_0;
    static constexpr std::size_t elements = 32, bytes = 22, high = 2, quants = 6;
};

struct Q5_1 {  // half scale, half minimum; 32 fifth bits; nibbles as in Q4_0
    static constexpr std::int32_t type = TRAINYARD_Q5_1;
    static constexpr std::size_t elements = 32, bytes = 24, minimum = 2, high = 4, quants = 8;
};

struct Q8_0 {  // half scale; 32 signed bytes
    static constexpr std::int32_t type = TRAINYARD_Q8_0;
    static constexpr std::size_t elements = 32, bytes = 34, quants = 2;
};

struct Q2_K {  // 16 bytes of 4-bit scale and minimum; 64 bytes of four 2-bit quants; half scale, half minimum
    static constexpr std::int32_t type = TRAINYARD_Q2_K;
    static constexpr std::size_t elements = 256, bytes = 84;
    static constexpr std::size_t scales = 0, quants = 16, scale = 80, minimum = 82;
};

struct Q3_K {  // 32 bytes of third bits; 64 bytes of four 2-bit quants; 16 scales of 6 bits; half scale
    static constexpr std::int32_t type = TRAINYARD_Q3_K;
    static constexpr std::size_t elements = 256, bytes = 110;
    static constexpr std::size_t high = 0, quants = 32, scales = 96, scale = 108;
};

struct Q4_K {  // half scale, half minimum; 8 scales and 8 minima of 6 bits; 128 bytes of nibbles
    static constexpr std::int32_t type = TRAINYARD_Q4_K;
    static constexpr std::size_t elements = 256, bytes = 144, minimum = 2, scales = 4, quants = 16;
};

struct Q5_K {  // as Q4_K, with 32 bytes of fifth bits before the nibbles
    static constexpr std::int32_t type = TRAINYARD_Q5_K;
    static constexpr std::size_t elements = 256, bytes = 176;
    static constexpr std::size_t minimum = 2, scales = 4, high = 16, quants = 48;
};

struct Q6_K {  // 128 bytes of low nibbles; 64 bytes of four high 2-bit parts; 16 signed scales; half scale
    static constexpr std::int32_t type = TRAINYARD_Q6_K;
    static constexpr std::size_t elements = 256, bytes = 210, high = 128, scales = 192, scale = 208;
};

[[maybe_unused]] inline std::uint16_t read_u16(const std::uint8_t* at) {
    std::uint16_t value;
    std::memcpy(&value, at, sizeof value);
    return value;
}

[[maybe_unused]] inline std::uint32_t read_u32(const std::uint8_t* at) {
    std::uint32_t value;
    std::memcpy(&value, at, sizeof value);
    return value;
}

// The bits of the float32 that equals a half. A NaN keeps its payload and stays signalling, as in NumPy.
[[maybe_unused]] inline std::uint32_t half_to_bits(std::uint16_t half) {
    const std::uint32_t sign = (half & 0x8000U) << 16;
    const std::uint32_t rest = half & 0x7fffU;
    if (rest >= 0x7c00U) {
        return sign | 0x7f800000U | (rest << 13);
    }
    if (rest < 0x0400U) {  // subnormal: an exact multiple of 2^-24, and a normal float32
        const float value = static_cast<float>(rest) * 0x1p-24F;
        std::uint32_t bits;
        std::memcpy(&bits, &value, sizeof bits);
        return sign | bits;
    }
    return sign | ((rest << 13) + 0x38000000U);
}

[[maybe_unused]] inline float read_half(const std::uint8_t* at) {
    const std::uint32_t bits = half_to_bits(read_u16(at));
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

struct SubScales {  // of Q4_K and Q5_K, one a sub-block of 32 elements
    std::uint8_t scale[8];
    std::uint8_t minimum[8];
};

// Unpacks 12 bytes: the first eight hold 6 bits of the first four each, and 2 high bits of the last four.
[[maybe_unused]] inline SubScales unpack_sub_scales(const std::uint8_t* packed) {
    SubScales found;
    for (std::size_t i = 0; i < 4; ++i) {
        const unsigned scale = packed[i], minimum = packed[i + 4], low = packed[i + 8];
        found.scale[i] = static_cast<std::uint8_t>(scale & 0x3fU);
        found.minimum[i] = static_cast<std::uint8_t>(minimum & 0x3fU);
        found.scale[i + 4] = static_cast<std::uint8_t>((low & 0x0fU) | ((scale >> 2) & 0x30U));
        found.minimum[i + 4] = static_cast<std::uint8_t>((low >> 4) | ((minimum >> 2) & 0x30U));
    }
    return found;
}

// The scale of sub-block `i` of 16 in Q3_K: the low nibbles lie in 8 bytes, the high 2 bits in 4, minus 32.
[[maybe_unused]] inline float q3_sub_scale(const std::uint8_t* packed, std::size_t i) {
    const int low = (packed[i % 8] >> (4 * (i / 8))) & 0x0f;
    const int high = (packed[8 + i % 4] >> (2 * (i / 4))) & 0x03;
    return static_cast<float>((low | (high << 4)) - 32);
}

}  // namespace
}  // namespace trainyard
