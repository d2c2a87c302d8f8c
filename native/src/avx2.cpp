// The path for processors with AVX2: eight elements at a time. Compiled with -mavx2 and called only where
// the processor says that it has AVX2. The order of the operations is the scalar path's, so the bits are the
// same.

#include <immintrin.h>

#include "formats.h"
#include "paths.h"

namespace trainyard {
namespace {

inline __m128i load16(const std::uint8_t* at) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
}

// (bytes >> shift) & mask in each byte; `mask` must clear what comes over from the neighbour byte.
inline __m128i part(__m128i bytes, unsigned shift, int mask) {
    const __m128i shifted = _mm_srl_epi16(bytes, _mm_cvtsi32_si128(static_cast<int>(shift)));
    return _mm_and_si128(shifted, _mm_set1_epi8(static_cast<char>(mask)));
}

inline __m256 low_floats(__m128i quants) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(quants)); }
inline __m256 high_floats(__m128i quants) { return low_floats(_mm_srli_si128(quants, 8)); }

// The first NaN is kept where two meet: the operands of a bare addition may be exchanged by the compiler.
inline __m256 sum(__m256 a, __m256 b) {
    return _mm256_blendv_ps(_mm256_add_ps(a, b), a, _mm256_cmp_ps(a, a, _CMP_UNORD_Q));
}

// Sixteen signed bytes times `scale`.
inline void put(__m128i quants, __m256 scale, float* out) {
    _mm256_storeu_ps(out, _mm256_mul_ps(scale, low_floats(quants)));
    _mm256_storeu_ps(out + 8, _mm256_mul_ps(scale, high_floats(quants)));
}

inline void put_plus(__m128i quants, __m256 scale, __m256 plus, float* out) {
    _mm256_storeu_ps(out, sum(_mm256_mul_ps(scale, low_floats(quants)), plus));
    _mm256_storeu_ps(out + 8, sum(_mm256_mul_ps(scale, high_floats(quants)), plus));
}

inline void put_minus(__m128i quants, __m256 scale, __m256 minus, float* out) {
    _mm256_storeu_ps(out, _mm256_sub_ps(_mm256_mul_ps(scale, low_floats(quants)), minus));
    _mm256_storeu_ps(out + 8, _mm256_sub_ps(_mm256_mul_ps(scale, high_floats(quants)), minus));
}

inline __m256 half_everywhere(const std::uint8_t* at) { return _mm256_set1_ps(read_half(at)); }

inline void block(Q4_0, const std::uint8_t* in, float* out) {
    const __m256 scale = half_everywhere(in);
    const __m128i nibbles = load16(in + Q4_0::quants), eight = _mm_set1_epi8(8);
    put(_mm_sub_epi8(part(nibbles, 0, 0x0f), eight), scale, out);
    put(_mm_sub_epi8(part(nibbles, 4, 0x0f), eight), scale, out + 16);
}

inline void block(Q4_1, const std::uint8_t* in, float* out) {
    const __m256 scale = half_everywhere(in), minimum = half_everywhere(in + Q4_1::minimum);
    const __m128i nibbles = load16(in + Q4_1::quants);
    put_plus(part(nibbles, 0, 0x0f), scale, minimum, out);
    put_plus(part(nibbles, 4, 0x0f), scale, minimum, out + 16);
}

// Sixteen bits become sixteen bytes of 0 or 16.
inline __m128i fifth_bits(std::uint32_t bits) {
    const __m128i bytes = _mm_shuffle_epi8(_mm_cvtsi32_si128(static_cast<int>(bits)),
                                           _mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1));
    const __m128i each = _mm_set1_epi64x(static_cast<long long>(0x8040201008040201ULL));
    const __m128i set = _mm_cmpeq_epi8(_mm_and_si128(bytes, each), each);
    return _mm_and_si128(set, _mm_set1_epi8(16));
}

inline __m128i five_bits(__m128i nibbles, unsigned shift, std::uint32_t high) {
    return _mm_or_si128(part(nibbles, shift, 0x0f), fifth_bits(high));
}

inline void block(Q5_0, const std::uint8_t* in, float* out) {
    const __m256 scale = half_everywhere(in);
    const std::uint32_t high = read_u32(in + Q5_0::high);
    const __m128i nibbles = load16(in + Q5_0::quants), sixteen = _mm_set1_epi8(16);
    put(_mm_sub_epi8(five_bits(nibbles, 0, high), sixteen), scale, out);
    put(_mm_sub_epi8(five_bits(nibbles, 4, high >> 16), sixteen), scale, out + 16);
}

inline void block(Q5_1, const std::uint8_t* in, float* out) {
    const __m256 scale = half_everywhere(in), minimum = half_everywhere(in + Q5_1::minimum);
    const std::uint32_t high = read_u32(in + Q5_1::high);
    const __m128i nibbles = load16(in + Q5_1::quants);
    put_plus(five_bits(nibbles, 0, high), scale, minimum, out);
    put_plus(five_bits(nibbles, 4, high >> 16), scale, minimum, out + 16);
}

inline void block(Q8_0, const std::uint8_t* in, float* out) {
    const __m256 scale = half_everywhere(in);
    put(load16(in + Q8_0::quants), scale, out);
    put(load16(in + Q8_0::quants + 16), scale, out + 16);
}

inline void block(Q2_K, const std::uint8_t* in, float* out) {
    const float scale = read_half(in + Q2_K::scale), minimum = read_half(in + Q2_K::minimum);
    for (std::size_t sub = 0; sub < 16; ++sub) {
        const std::uint8_t packed = in[Q2_K::scales + sub];
        const __m256 by = _mm256_set1_ps(scale * static_cast<float>(packed & 0x0f));
        const __m256 minus = _mm256_set1_ps(minimum * static_cast<float>(packed >> 4));
        const __m128i quants = load16(in + Q2_K::quants + sub / 8 * 32 + sub % 2 * 16);
        put_minus(part(quants, static_cast<unsigned>(sub % 8 / 2 * 2), 3), by, minus, out + sub * 16);
    }
}

inline void block(Q3_K, const std::uint8_t* in, float* out) {
    const float scale = read_half(in + Q3_K::scale);
    for (std::size_t sub = 0; sub < 16; ++sub) {
        const __m256 by = _mm256_set1_ps(scale * q3_sub_scale(in + Q3_K::scales, sub));
        const __m128i quants = load16(in + Q3_K::quants + sub / 8 * 32 + sub % 2 * 16);
        const __m128i high = part(load16(in + Q3_K::high + sub % 2 * 16), static_cast<unsigned>(sub / 2), 1);
        const __m128i low = part(quants, static_cast<unsigned>(sub % 8 / 2 * 2), 3);
        const __m128i offset = _mm_andnot_si128(_mm_cmpeq_epi8(high, _mm_set1_epi8(1)), _mm_set1_epi8(4));
        put(_mm_sub_epi8(low, offset), by, out + sub * 16);
    }
}

inline void block(Q4_K, const std::uint8_t* in, float* out) {
    const float scale = read_half(in), minimum = read_half(in + Q4_K::minimum);
    const SubScales subs = unpack_sub_scales(in + Q4_K::scales);
    for (std::size_t sub = 0; sub < 8; ++sub) {
        const __m256 by = _mm256_set1_ps(scale * static_cast<float>(subs.scale[sub]));
        const __m256 minus = _mm256_set1_ps(minimum * static_cast<float>(subs.minimum[sub]));
        const std::uint8_t* quants = in + Q4_K::quants + sub / 2 * 32;
        const unsigned shift = sub % 2 * 4;
        put_minus(part(load16(quants), shift, 0x0f), by, minus, out + sub * 32);
        put_minus(part(load16(quants + 16), shift, 0x0f), by, minus, out + sub * 32 + 16);
    }
}

inline void block(Q5_K, const std::uint8_t* in, float* out) {
    const float scale = read_half(in), minimum = read_half(in + Q5_K::minimum);
    const SubScales subs = unpack_sub_scales(in + Q5_K::scales);
    for (std::size_t sub = 0; sub < 8; ++sub) {
        const __m256 by = _mm256_set1_ps(scale * static_cast<float>(subs.scale[sub]));
        const __m256 minus = _mm256_set1_ps(minimum * static_cast<float>(subs.minimum[sub]));
        for (std::size_t from = 0; from < 32; from += 16) {
            const __m128i low = part(load16(in + Q5_K::quants + sub / 2 * 32 + from), sub % 2 * 4, 0x0f);
            const __m128i high = part(load16(in + Q5_K::high + from), static_cast<unsigned>(sub), 1);
            put_minus(_mm_or_si128(low, _mm_slli_epi16(high, 4)), by, minus, out + sub * 32 + from);
        }
    }
}

inline void block(Q6_K, const std::uint8_t* in, float* out) {
    const float scale = read_half(in + Q6_K::scale);
    const __m128i thirty_two = _mm_set1_epi8(32);
    for (std::size_t sub = 0; sub < 16; ++sub) {
        const auto factor = static_cast<float>(static_cast<std::int8_t>(in[Q6_K::scales + sub]));
        const __m256 by = _mm256_set1_ps(scale * factor);
        const std::size_t half = sub / 8, piece = sub % 8 / 2, from = sub % 2 * 16;
        const __m128i low = load16(in + half * 64 + piece % 2 * 32 + from);
        const __m128i high = load16(in + Q6_K::high + half * 32 + from);
        const __m128i upper = _mm_slli_epi16(part(high, static_cast<unsigned>(piece * 2), 3), 4);
        const __m128i quants = _mm_or_si128(part(low, static_cast<unsigned>(piece / 2 * 4), 0x0f), upper);
        put(_mm_sub_epi8(quants, thirty_two), by, out + sub * 16);
    }
}

// Eight halves to floats by integer operations: the conversion instruction would make signalling NaNs quiet.
inline __m256i eight_halves(__m128i halves) {
    const __m256i wide = _mm256_cvtepu16_epi32(halves);
    const __m256i rest = _mm256_and_si256(wide, _mm256_set1_epi32(0x7fff));
    const __m256i sign = _mm256_slli_epi32(_mm256_xor_si256(wide, rest), 16);
    const __m256i moved = _mm256_slli_epi32(rest, 13);
    const __m256i normal = _mm256_add_epi32(moved, _mm256_set1_epi32(0x38000000));
    const __m256i special = _mm256_or_si256(moved, _mm256_set1_epi32(0x7f800000));
    const __m256 tiny = _mm256_mul_ps(_mm256_cvtepi32_ps(rest), _mm256_set1_ps(0x1p-24F));
    const __m256i is_tiny = _mm256_cmpgt_epi32(_mm256_set1_epi32(0x0400), rest);
    const __m256i is_special = _mm256_cmpgt_epi32(rest, _mm256_set1_epi32(0x7bff));
    const __m256i finite = _mm256_blendv_epi8(normal, _mm256_castps_si256(tiny), is_tiny);
    return _mm256_or_si256(sign, _mm256_blendv_epi8(finite, special, is_special));
}

inline __m256i eight(F16, __m128i values) { return eight_halves(values); }
inline __m256i eight(BF16, __m128i values) { return _mm256_slli_epi32(_mm256_cvtepu16_epi32(values), 16); }

// F16 and BF16: eight at a time, the rest by the scalar path.
template <typename Format>
void all_numbers(const std::uint8_t* input, std::size_t count, float* output) {
    const std::size_t whole = count / 8 * 8;
    for (std::size_t i = 0; i < whole; i += 8) {
        const __m256i bits = eight(Format{}, load16(input + i * 2));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(output + i), bits);
    }
    scalar_row(Format::type)->kernel(input + whole * 2, count - whole, output + whole);
}

template <typename Format>
void all_blocks(const std::uint8_t* input, std::size_t blocks, float* output) {
    for (std::size_t i = 0; i < blocks; ++i) {
        block(Format{}, input + i * Format::bytes, output + i * Format::elements);
    }
}

template <typename Format>
constexpr Row row(Kernel kernel) {
    return {Format::type, Format::elements, Format::bytes, kernel};
}

constexpr Row rows[] = {
    row<F16>(all_numbers<F16>),  row<BF16>(all_numbers<BF16>), row<Q4_0>(all_blocks<Q4_0>),
    row<Q4_1>(all_blocks<Q4_1>), row<Q5_0>(all_blocks<Q5_0>),  row<Q5_1>(all_blocks<Q5_1>),
    row<Q8_0>(all_blocks<Q8_0>), row<Q2_K>(all_blocks<Q2_K>),  row<Q3_K>(all_blocks<Q3_K>),
    row<Q4_K>(all_blocks<Q4_K>), row<Q5_K>(all_blocks<Q5_K>),  row<Q6_K>(all_blocks<Q6_K>)};

}  // namespace

const Row* avx2_row(std::int32_t type) noexcept {
    for (const Row& row : rows) {
        if (row.type == type) {
            return &row;
        }
    }
    return nullptr;
}

}  // namespace trainyard
