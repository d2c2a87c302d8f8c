// The AVX2 path against the scalar one, bit for bit, on blocks that no quantiser would write too.

#include "blocks.h"

namespace {

constexpr std::size_t BLOCKS = 512;

class Paths : public testing::TestWithParam<Type> {
  protected:
    void SetUp() override {
        if (!has_avx2()) {
            GTEST_SKIP() << "this processor, or this build, has no AVX2";
        }
    }

    static void expect_equal(const Bytes& input) {
        const Floats scalar = dequantized(GetParam(), input, options(TRAINYARD_SCALAR));
        EXPECT_EQ(bits_of(scalar), bits_of(dequantized(GetParam(), input, options(TRAINYARD_AVX2))));
        EXPECT_EQ(bits_of(scalar), bits_of(dequantized(GetParam(), input, options(TRAINYARD_BEST))));
    }
};

TEST_P(Paths, AgreeOnRandomBytes) {
    for (std::uint32_t seed = 1; seed <= 8; ++seed) {
        expect_equal(random_bytes(BLOCKS * GetParam().bytes, seed));
    }
}

// Zeros, subnormals, the largest, infinities, quiet and signalling NaNs; every pair where a block has two.
TEST_P(Paths, AgreeOnExtremeScales) {
    const std::uint16_t extremes[] = {0x0000, 0x8000, 0x0001, 0x8001, 0x03ff, 0x0400, 0x7bff, 0xfbff,
                                      0x7c00, 0xfc00, 0x7e00, 0xfe01, 0x7c01, 0xfdff, 0x3c00, 0xbc00};
    const Type& type = GetParam();
    std::uint32_t seed = 100;
    for (const std::uint16_t first : extremes) {
        for (const std::uint16_t second : extremes) {
            Bytes input = random_bytes(4 * type.bytes, seed++);
            for (std::size_t block = 0; block < 4; ++block) {
                put_half(input, block * type.bytes + type.halves.front(), first);
                if (type.halves.size() > 1) {
                    put_half(input, block * type.bytes + type.halves.back(), second);
                }
            }
            expect_equal(input);
        }
    }
}

TEST_P(Paths, AgreeOnBlocksOfOneByteValue) {
    for (unsigned value = 0; value < 256; ++value) {
        expect_equal(Bytes(3 * GetParam().bytes, static_cast<std::uint8_t>(value)));
    }
}

TEST_P(Paths, AgreeOnEveryCountUpToFortyBlocks) {
    for (std::size_t count = 0; count <= 40; ++count) {
        expect_equal(random_bytes(count * GetParam().bytes, static_cast<std::uint32_t>(200 + count)));
    }
}

INSTANTIATE_TEST_SUITE_P(EveryType, Paths, testing::ValuesIn(all_types()), name_of);

}  // namespace
