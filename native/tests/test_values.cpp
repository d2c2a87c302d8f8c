// Blocks that were computed by hand, on every path that the processor has.

#include <algorithm>
#include <cmath>
#include <limits>

#include "blocks.h"

namespace {

constexpr std::uint16_t HALF_0_5 = 0x3800, HALF_1 = 0x3c00, HALF_2 = 0x4000, HALF_MINUS_3 = 0xc200;
constexpr float INFINITE = std::numeric_limits<float>::infinity();

Floats both_paths(std::int32_t number, const Bytes& block) {
    for (const Type& type : all_types()) {
        if (type.number == number) {
            const Floats values = dequantized(type, block, options(TRAINYARD_SCALAR));
            for (const std::int32_t path : paths()) {
                EXPECT_EQ(bits_of(values), bits_of(dequantized(type, block, options(path))));
            }
            return values;
        }
    }
    ADD_FAILURE() << "no such type";
    return {};
}

TEST(Values, EightBitsAreSignedAndScaled) {
    Bytes block(34);
    put_half(block, 0, HALF_0_5);
    for (std::size_t i = 0; i < 32; ++i) {
        block[2 + i] = static_cast<std::uint8_t>(i * 8);  // 0, 8, ... 120, -128, ... -8
    }
    const Floats values = both_paths(TRAINYARD_Q8_0, block);
    for (std::size_t i = 0; i < 32; ++i) {
        const int quant = static_cast<int>(i) * 8 - (i < 16 ? 0 : 256);
        EXPECT_EQ(values[i], 0.5F * static_cast<float>(quant)) << i;
    }
}

TEST(Values, FourBitsLieAroundEight) {
    Bytes block(18);
    put_half(block, 0, HALF_2);
    for (std::size_t i = 0; i < 16; ++i) {
        block[2 + i] = static_cast<std::uint8_t>(i | (15 - i) << 4);
    }
    const Floats values = both_paths(TRAINYARD_Q4_0, block);
    for (std::size_t i = 0; i < 16; ++i) {
        EXPECT_EQ(values[i], 2.0F * (static_cast<float>(i) - 8.0F)) << i;
        EXPECT_EQ(values[16 + i], 2.0F * (7.0F - static_cast<float>(i))) << i;
    }
}

TEST(Values, FourBitsWithAMinimum) {
    Bytes block(20);
    put_half(block, 0, HALF_0_5);
    put_half(block, 2, HALF_MINUS_3);
    for (std::size_t i = 0; i < 16; ++i) {
        block[4 + i] = static_cast<std::uint8_t>(i | (15 - i) << 4);
    }
    const Floats values = both_paths(TRAINYARD_Q4_1, block);
    for (std::size_t i = 0; i < 16; ++i) {
        EXPECT_EQ(values[i], 0.5F * static_cast<float>(i) - 3.0F) << i;
        EXPECT_EQ(values[16 + i], 0.5F * static_cast<float>(15 - i) - 3.0F) << i;
    }
}

// Nibbles count up; the fifth bit is set for elements 1, 16 and 31.
Bytes five_bit_block(std::size_t size, std::size_t high, std::size_t quants) {
    Bytes block(size);
    const std::uint32_t set = 1U << 1 | 1U << 16 | 1U << 31;
    std::memcpy(block.data() + high, &set, sizeof set);
    for (std::size_t i = 0; i < 16; ++i) {
        block[quants + i] = static_cast<std::uint8_t>(i | i << 4);
    }
    return block;
}

float five_bit_quant(std::size_t i) {
    return static_cast<float>(i % 16) + (i == 1 || i == 16 || i == 31 ? 16.0F : 0.0F);
}

TEST(Values, FiveBitsLieAroundSixteen) {
    Bytes block = five_bit_block(22, 2, 6);
    put_half(block, 0, HALF_2);
    const Floats values = both_paths(TRAINYARD_Q5_0, block);
    for (std::size_t i = 0; i < 32; ++i) {
        EXPECT_EQ(values[i], 2.0F * (five_bit_quant(i) - 16.0F)) << i;
    }
}

TEST(Values, FiveBitsWithAMinimum) {
    Bytes block = five_bit_block(24, 4, 8);
    put_half(block, 0, HALF_0_5);
    put_half(block, 2, HALF_1);
    const Floats values = both_paths(TRAINYARD_Q5_1, block);
    for (std::size_t i = 0; i < 32; ++i) {
        EXPECT_EQ(values[i], 0.5F * five_bit_quant(i) + 1.0F) << i;
    }
}

TEST(Values, TwoBitsHaveScaleAndMinimumOfFourBitsInEverySixteen) {
    Bytes block(84);
    for (std::size_t sub = 0; sub < 16; ++sub) {
        block[sub] = static_cast<std::uint8_t>(sub | (15 - sub) << 4);
    }
    std::fill(block.begin() + 16, block.begin() + 80, std::uint8_t{0xe4});  // 0, 1, 2, 3 from the low bits up
    put_half(block, 80, HALF_2);
    put_half(block, 82, HALF_0_5);
    const Floats values = both_paths(TRAINYARD_Q2_K, block);
    for (std::size_t i = 0; i < 256; ++i) {
        const std::size_t sub = i / 16, quant = i % 128 / 32;
        const float minus = 0.5F * static_cast<float>(15 - sub);
        EXPECT_EQ(values[i], 2.0F * static_cast<float>(sub * quant) - minus) << i;
    }
}

TEST(Values, ThreeBitsTakeFourAwayWhereTheThirdIsNotSet) {
    Bytes block(110);
    std::fill(block.begin(), block.begin() + 32, std::uint8_t{0x01});  // set in the first 32 elements only
    std::fill(block.begin() + 32, block.begin() + 96, std::uint8_t{0xe4});
    for (std::size_t i = 96; i < 104; ++i) {
        block[i] = 0x21;  // low bits: 1 for the sub-blocks 0 to 7, 2 for the others
    }
    std::fill(block.begin() + 104, block.begin() + 108, std::uint8_t{0xea});  // high: 2, 2, 2, 3 times 16
    put_half(block, 108, HALF_0_5);
    const Floats values = both_paths(TRAINYARD_Q3_K, block);
    for (std::size_t i = 0; i < 256; ++i) {
        const std::size_t sub = i / 16;
        const float scale = (sub < 8 ? 1.0F : 2.0F) + (sub < 12 ? 32.0F : 48.0F) - 32.0F;
        const float quant = static_cast<float>(i % 128 / 32) - (i < 32 ? 0.0F : 4.0F);
        EXPECT_EQ(values[i], 0.5F * scale * quant) << i;
    }
}

// Sub-block `i` gets the scale 10 + i and the minimum 50 - i; both above 15, so that high bits are in use.
void put_sub_scales(Bytes& block) {
    for (std::size_t i = 0; i < 4; ++i) {
        const std::size_t scale = 14 + i, minimum = 46 - i;  // of sub-block 4 + i
        block[4 + i] = static_cast<std::uint8_t>((10 + i) | (scale >> 4) << 6);
        block[8 + i] = static_cast<std::uint8_t>((50 - i) | (minimum >> 4) << 6);
        block[12 + i] = static_cast<std::uint8_t>((scale & 15) | (minimum & 15) << 4);
    }
}

TEST(Values, FourBitsOfKHaveScaleAndMinimumOfSixBits) {
    Bytes block(144);
    put_half(block, 0, HALF_0_5);
    put_half(block, 2, HALF_2);
    put_sub_scales(block);
    for (std::size_t i = 0; i < 128; ++i) {
        block[16 + i] = static_cast<std::uint8_t>((i % 16) | (15 - i % 16) << 4);
    }
    const Floats values = both_paths(TRAINYARD_Q4_K, block);
    for (std::size_t i = 0; i < 256; ++i) {
        const auto sub = static_cast<float>(i / 32);
        const auto quant = static_cast<float>(i / 32 % 2 == 0 ? i % 16 : 15 - i % 16);
        EXPECT_EQ(values[i], 0.5F * (10.0F + sub) * quant - 2.0F * (50.0F - sub)) << i;
    }
}

TEST(Values, FiveBitsOfKTakeTheirFifthFromTheBitOfTheSubBlock) {
    Bytes block(176);
    put_half(block, 0, HALF_0_5);
    put_half(block, 2, HALF_2);
    put_sub_scales(block);
    std::fill(block.begin() + 16, block.begin() + 48, std::uint8_t{0x42});  // sub-blocks 1 and 6
    std::fill(block.begin() + 48, block.end(), std::uint8_t{0x93});         // 3 below, 9 above
    const Floats values = both_paths(TRAINYARD_Q5_K, block);
    for (std::size_t i = 0; i < 256; ++i) {
        const std::size_t sub = i / 32;
        const float quant = (sub % 2 == 0 ? 3.0F : 9.0F) + (sub == 1 || sub == 6 ? 16.0F : 0.0F);
        const auto at = static_cast<float>(sub);
        EXPECT_EQ(values[i], 0.5F * (10.0F + at) * quant - 2.0F * (50.0F - at)) << i;
    }
}

TEST(Values, SixBitsOfKLieAroundThirtyTwoWithSignedScales) {
    Bytes block(210);
    std::fill(block.begin(), block.begin() + 128, std::uint8_t{0x93});         // 3 below, 9 above
    std::fill(block.begin() + 128, block.begin() + 192, std::uint8_t{0xe4});  // 0, 1, 2, 3 times 16
    for (std::size_t sub = 0; sub < 16; ++sub) {
        block[192 + sub] = static_cast<std::uint8_t>(static_cast<int>(sub) - 8);
    }
    put_half(block, 208, HALF_0_5);
    const Floats values = both_paths(TRAINYARD_Q6_K, block);
    for (std::size_t i = 0; i < 256; ++i) {
        const std::size_t piece = i % 128 / 32;
        const float quant = (piece < 2 ? 3.0F : 9.0F) + 16.0F * static_cast<float>(piece) - 32.0F;
        EXPECT_EQ(values[i], 0.5F * (static_cast<float>(i / 16) - 8.0F) * quant) << i;
    }
}

// 2^exponent (1 + fraction / 1024) as IEEE 754 says, by other means than the library's.
double half_by_definition(unsigned half) {
    const unsigned exponent = half >> 10 & 31, fraction = half & 1023;
    const double size = exponent == 0 ? std::ldexp(fraction, -24)
                                      : std::ldexp(1024 + fraction, static_cast<int>(exponent) - 25);
    return half & 0x8000 ? -size : size;
}

TEST(Values, EveryHalfIsTheNumberThatItIsByDefinition) {
    Bytes all(65536 * 2);
    for (unsigned half = 0; half < 65536; ++half) {
        put_half(all, half * 2, static_cast<std::uint16_t>(half));
    }
    const Floats values = both_paths(TRAINYARD_F16, all);
    const std::vector<std::uint32_t> bits = bits_of(values);
    for (unsigned half = 0; half < 65536; ++half) {
        const std::uint32_t sign = half & 0x8000 ? 0x80000000U : 0;
        if ((half & 0x7c00) == 0x7c00) {  // infinity, or a NaN whose payload stays
            ASSERT_EQ(bits[half], sign | 0x7f800000U | (half & 0x3ffU) << 13) << half;
        } else {
            ASSERT_EQ(values[half], half_by_definition(half)) << half;
            ASSERT_EQ(bits[half] & 0x80000000U, sign) << half;
        }
    }
}

TEST(Values, BfloatsAreTheUpperHalfOfAFloat) {
    Bytes all(65536 * 2);
    for (unsigned upper = 0; upper < 65536; ++upper) {
        put_half(all, upper * 2, static_cast<std::uint16_t>(upper));
    }
    const std::vector<std::uint32_t> bits = bits_of(both_paths(TRAINYARD_BF16, all));
    for (unsigned upper = 0; upper < 65536; ++upper) {
        ASSERT_EQ(bits[upper], upper << 16);
    }
}

TEST(Values, AnInfiniteScaleMakesInfinitiesAndNaNs) {
    Bytes block(34);
    put_half(block, 0, 0x7c00);
    block[3] = 1;
    block[4] = 0xff;
    const Floats values = both_paths(TRAINYARD_Q8_0, block);
    EXPECT_TRUE(std::isnan(values[0]));  // infinity times 0
    EXPECT_EQ(values[1], INFINITE);
    EXPECT_EQ(values[2], -INFINITE);
}

TEST(Values, WhereTwoNaNsMeetTheOneOfTheScaleIsKept) {
    Bytes block = random_bytes(20, 6);
    put_half(block, 0, 0x7e01);
    put_half(block, 2, 0xfe02);
    EXPECT_EQ(bits_of(both_paths(TRAINYARD_Q4_1, block)), std::vector<std::uint32_t>(32, 0x7fc02000U));
}

TEST(Values, ANegativeScaleKeepsTheSignOfZero) {
    Bytes block(34);
    put_half(block, 0, HALF_MINUS_3);
    EXPECT_TRUE(std::signbit(both_paths(TRAINYARD_Q8_0, block)[0]));
}

}  // namespace
