// The path for every processor: one element at a time, in plain C++.

#include "formats.h"
#include "paths.h"

namespace trainyard {
namespace {

// Where two NaNs meet, C++ leaves open which one is kept; it is the first, as in NumPy's loops over arrays.
inline float sum(float a, float b) { return std::isnan(a) ? a : a + b; }

inline float nibble(std::uint8_t byte, unsigned shift) { return static_cast<float>((byte >> shift) & 0x0f); }

inline void block(F16, const std::uint8_t* in, float* out) {
    const std::uint32_t bits = half_to_bits(read_u16(in));
    std::memcpy(out, &bits, sizeof bits);  // not through a float variable: a signalling NaN must survive
}

inline void block(BF16, const std::uint8_t* in, float* out) {
    const std::uint32_t bits = static_cast<std::uint32_t>(read_u16(in)) << 16;
    std::memcpy(out, &bits, sizeof bits);
}

inline void block(Q4_0, const std::uint8_t* in, float* out) {
    const float scale = read_half(in);
    for (std::size_t i = 0; i < 16; ++i) {
        const std::uint8_t byte = in[Q4_0::quants + i];
        out[i] = scale * (nibble(byte, 0) - 8.0F);
        out[i + 16] = scale * (nibble(byte, 4) - 8.0F);
    }
}

inline void block(Q4_1, const std::uint8_t* in, float* out) {
    const float scale = read_half(in), minimum = read_half(in + Q4_1::minimum);
    for (std::size_t i = 0; i < 16; ++i) {
        const std::uint8_t byte = in[Q4_1::quants + i];
        out[i] = sum(scale * nibble(byte, 0), minimum);
        out[i + 16] = sum(scale * nibble(byte, 4), minimum);
    }
}

// The quant of five bits of element `i`, from its nibble and bit `i` of `high`.
inline float five_bits(const std::uint8_t* nibbles, std::uint32_t high, std::size_t i) {
    const unsigned low = (nibbles[i % 16] >> (i / 16 * 4)) & 0x0fU;
    return static_cast<float>(low | ((high >> i) & 1U) << 4);
}

inline void block(Q5_0, const std::uint8_t* in, float* out) {
    const float scale = read_half(in);
    const std::uint32_t high = read_u32(in + Q5_0::high);
    for (std::size_t i = 0; i < 32; ++i) {
        out[i] = scale * (five_bits(in + Q5_0::quants, high, i) - 16.0F);
    }
}

inline void block(Q5_1, const std::uint8_t* in, float* out) {
    const float scale = read_half(in), minimum = read_half(in + Q5_1::minimum);
    const std::uint32_t high = read_u32(in + Q5_1::high);
    for (std::size_t i = 0; i < 32; ++i) {
        out[i] = sum(scale * five_bits(in + Q5_1::quants, high, i), minimum);
    }
}

inline void block(Q8_0, const std::uint8_t* in, float* out) {
    const float scale = read_half(in);
    for (std::size_t i = 0; i < 32; ++i) {
        out[i] = static_cast<float>(static_cast<std::int8_t>(in[Q8_0::quants + i])) * scale;
    }
}

// Bytes and shift of the 2-bit quants of sub-block `sub` of 16 elements, in Q2_K and Q3_K.
inline std::size_t pair_bytes(std::size_t sub) { return sub / 8 * 32 + sub % 2 * 16; }
inline unsigned pair_shift(std::size_t sub) { return static_cast<unsigned>(sub % 8 / 2 * 2); }

inline void block(Q2_K, const std::uint8_t* in, float* out) {
    const float scale = read_half(in + Q2_K::scale), minimum = read_half(in + Q2_K::minimum);
    for (std::size_t sub = 0; sub < 16; ++sub) {
        const float by = scale * nibble(in[Q2_K::scales + sub], 0);
        const float minus = minimum * nibble(in[Q2_K::scales + sub], 4);
        const std::uint8_t* quants = in + Q2_K::quants + pair_bytes(sub);
        for (std::size_t i = 0; i < 16; ++i) {
            out[sub * 16 + i] = by * static_cast<float>((quants[i] >> pair_shift(sub)) & 3) - minus;
        }
    }
}

inline void block(Q3_K, const std::uint8_t* in, float* out) {
    const float scale = read_half(in + Q3_K::scale);
    for (std::size_t sub = 0; sub < 16; ++sub) {
        const float by = scale * q3_sub_scale(in + Q3_K::scales, sub);
        const std::uint8_t* quants = in + Q3_K::quants + pair_bytes(sub);
        const std::uint8_t* high = in + Q3_K::high + sub % 2 * 16;
        for (std::size_t i = 0; i < 16; ++i) {
            const int third = (high[i] >> (sub / 2)) & 1;  // set means: no offset
            const int quant = ((quants[i] >> pair_shift(sub)) & 3) - (third ? 0 : 4);
            out[sub * 16 + i] = by * static_cast<float>(quant);
        }
    }
}

inline void block(Q4_K, const std::uint8_t* in, float* out) {
    const float scale = read_half(in), minimum = read_half(in + Q4_K::minimum);
    const SubScales subs = unpack_sub_scales(in + Q4_K::scales);
    for (std::size_t sub = 0; sub < 8; ++sub) {
        const float by = scale * static_cast<float>(subs.scale[sub]);
        const float minus = minimum * static_cast<float>(subs.minimum[sub]);
        const std::uint8_t* quants = in + Q4_K::quants + sub / 2 * 32;
        const unsigned shift = sub % 2 * 4;
        for (std::size_t i = 0; i < 32; ++i) {
            out[sub * 32 + i] = by * nibble(quants[i], shift) - minus;
        }
    }
}

inline void block(Q5_K, const std::uint8_t* in, float* out) {
    const float scale = read_half(in), minimum = read_half(in + Q5_K::minimum);
    const SubScales subs = unpack_sub_scales(in + Q5_K::scales);
    for (std::size_t sub = 0; sub < 8; ++sub) {
        const float by = scale * static_cast<float>(subs.scale[sub]);
        const float minus = minimum * static_cast<float>(subs.minimum[sub]);
        const std::uint8_t* quants = in + Q5_K::quants + sub / 2 * 32;
        const unsigned shift = sub % 2 * 4;
        for (std::size_t i = 0; i < 32; ++i) {
            const int high = (in[Q5_K::high + i] >> sub) & 1;
            const int quant = ((quants[i] >> shift) & 0x0f) | (high << 4);
            out[sub * 32 + i] = by * static_cast<float>(quant) - minus;
        }
    }
}

inline void block(Q6_K, const std::uint8_t* in, float* out) {
    const float scale = read_half(in + Q6_K::scale);
    for (std::size_t sub = 0; sub < 16; ++sub) {
        const float by = scale * static_cast<float>(static_cast<std::int8_t>(in[Q6_K::scales + sub]));
        const std::size_t half = sub / 8, part = sub % 8 / 2, from = sub % 2 * 16;
        const std::uint8_t* low = in + half * 64 + part % 2 * 32 + from;
        const std::uint8_t* high = in + Q6_K::high + half * 32 + from;
        for (std::size_t i = 0; i < 16; ++i) {
            const int quant = ((low[i] >> (part / 2 * 4)) & 0x0f) | ((high[i] >> (part * 2)) & 3) << 4;
            out[sub * 16 + i] = by * static_cast<float>(quant - 32);
        }
    }
}

template <typename Format>
void all_blocks(const std::uint8_t* input, std::size_t blocks, float* output) {
    for (std::size_t i = 0; i < blocks; ++i) {
        block(Format{}, input + i * Format::bytes, output + i * Format::elements);
    }
}

template <typename Format>
constexpr Row row() {
    return {Format::type, Format::elements, Format::bytes, all_blocks<Format>};
}

constexpr Row rows[] = {row<F16>(),  row<BF16>(), row<Q4_0>(), row<Q4_1>(), row<Q5_0>(), row<Q5_1>(),
                        row<Q8_0>(), row<Q2_K>(), row<Q3_K>(), row<Q4_K>(), row<Q5_K>(), row<Q6_K>()};

}  // namespace

const Row* scalar_row(std::int32_t type) noexcept {
    for (const Row& row : rows) {
        if (row.type == type) {
            return &row;
        }
    }
    return nullptr;
}

}  // namespace trainyard
