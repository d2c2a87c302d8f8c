// What is refused, and that a refused call touches nothing.

#include <limits>
#include <set>

#include "blocks.h"

namespace {

constexpr std::size_t MOST = std::numeric_limits<std::size_t>::max();

class Refusals : public testing::TestWithParam<Type> {
  protected:
    Bytes input = random_bytes(4 * GetParam().bytes, 5);
    Floats output = Floats(4 * GetParam().elements, 7.0F);
    trainyard_options with = options(TRAINYARD_BEST);

    std::int32_t call(std::size_t input_bytes, std::size_t output_elements) {
        return trainyard_dequantize(GetParam().number, input.data(), input_bytes, output.data(),
                                    output_elements, &with);
    }

    std::int32_t call() { return call(input.size(), output.size()); }

    void TearDown() override { EXPECT_EQ(output, Floats(4 * GetParam().elements, 7.0F)); }
};

TEST_P(Refusals, AnInputThatIsNotWholeBlocks) {
    EXPECT_EQ(call(input.size() - 1, output.size()), TRAINYARD_PARTIAL_BLOCK);
    EXPECT_EQ(call(1, output.size()), TRAINYARD_PARTIAL_BLOCK);
}

TEST_P(Refusals, AnOutputOfAnotherSize) {
    const std::size_t right = output.size();
    for (const std::size_t elements : {right - 1, right + 1, right / 2, right * 2}) {
        EXPECT_EQ(call(input.size(), elements), TRAINYARD_SIZE_MISMATCH) << elements;
    }
    EXPECT_EQ(call(input.size(), 0), TRAINYARD_SIZE_MISMATCH);
    EXPECT_EQ(call(0, output.size()), TRAINYARD_SIZE_MISMATCH);
}

// The product of blocks and bytes wraps around to a small number; the sizes must not pass for equal.
TEST_P(Refusals, SizesThatWouldWrapAround) {
    const std::size_t bytes = MOST / GetParam().bytes * GetParam().bytes;
    EXPECT_EQ(call(bytes, output.size()), TRAINYARD_SIZE_MISMATCH);
    EXPECT_EQ(call(input.size(), MOST), TRAINYARD_SIZE_MISMATCH);
    EXPECT_EQ(call(input.size(), MOST / GetParam().elements * GetParam().elements), TRAINYARD_SIZE_MISMATCH);
}

TEST_P(Refusals, NullPointers) {
    const std::int32_t type = GetParam().number;
    EXPECT_EQ(trainyard_dequantize(type, nullptr, input.size(), output.data(), output.size(), &with),
              TRAINYARD_NULL_POINTER);
    EXPECT_EQ(trainyard_dequantize(type, input.data(), input.size(), nullptr, output.size(), &with),
              TRAINYARD_NULL_POINTER);
    EXPECT_EQ(trainyard_dequantize(type, input.data(), input.size(), output.data(), output.size(), nullptr),
              TRAINYARD_NULL_POINTER);
}

TEST_P(Refusals, AnOutputThatIsNotAligned) {
    auto* askew = reinterpret_cast<float*>(reinterpret_cast<char*>(output.data()) + 1);
    const Type& type = GetParam();
    EXPECT_EQ(trainyard_dequantize(type.number, input.data(), type.bytes, askew, type.elements, &with),
              TRAINYARD_UNALIGNED_OUTPUT);
}

TEST_P(Refusals, OptionsThatMeanNothing) {
    with.tile_bytes = 0;
    EXPECT_EQ(call(), TRAINYARD_BAD_TILE);
    with = options(TRAINYARD_BEST, 1, 0);
    EXPECT_EQ(call(), TRAINYARD_BAD_THREADS);
    with = options(TRAINYARD_BEST, 1, TRAINYARD_MOST_THREADS + 1);
    EXPECT_EQ(call(), TRAINYARD_BAD_THREADS);
    for (const std::int32_t unknown : {-1, 3, 512}) {
        with = options(unknown);
        EXPECT_EQ(call(), TRAINYARD_NO_SUCH_INSTRUCTIONS);
    }
    if (!has_avx2()) {
        with = options(TRAINYARD_AVX2);
        EXPECT_EQ(call(), TRAINYARD_NO_SUCH_INSTRUCTIONS);
    }
}

INSTANTIATE_TEST_SUITE_P(EveryType, Refusals, testing::ValuesIn(all_types()), name_of);

TEST(Interface, NothingInNothingOut) {
    const trainyard_options with = options(TRAINYARD_BEST, 4096, 8);
    for (const Type& type : all_types()) {
        EXPECT_EQ(trainyard_dequantize(type.number, nullptr, 0, nullptr, 0, &with), TRAINYARD_OK);
    }
}

TEST(Interface, SaysTheSizesOfABlock) {
    for (const Type& type : all_types()) {
        std::size_t elements = 0, bytes = 0;
        EXPECT_EQ(trainyard_block(type.number, &elements, &bytes), TRAINYARD_OK);
        EXPECT_EQ(elements, type.elements);
        EXPECT_EQ(bytes, type.bytes);
        EXPECT_EQ(trainyard_block(type.number, nullptr, &bytes), TRAINYARD_NULL_POINTER);
        EXPECT_EQ(trainyard_block(type.number, &elements, nullptr), TRAINYARD_NULL_POINTER);
    }
}

TEST(Interface, KnowsNoOtherTypes) {
    std::set<std::int32_t> known;
    for (const Type& type : all_types()) {
        known.insert(type.number);
    }
    const trainyard_options with = options(TRAINYARD_BEST);
    for (std::int32_t number = -2; number < 300; ++number) {
        std::size_t elements = 0, bytes = 0;
        const std::int32_t expected = known.count(number) ? TRAINYARD_OK : TRAINYARD_UNKNOWN_TYPE;
        EXPECT_EQ(trainyard_block(number, &elements, &bytes), expected) << number;
        EXPECT_EQ(trainyard_dequantize(number, nullptr, 0, nullptr, 0, &with), expected) << number;
    }
}

TEST(Interface, EveryStatusHasItsOwnText) {
    std::set<std::string> texts;
    for (std::int32_t status = TRAINYARD_OK; status <= TRAINYARD_NO_SUCH_INSTRUCTIONS; ++status) {
        texts.insert(trainyard_status_text(status));
    }
    EXPECT_EQ(texts.size(), static_cast<std::size_t>(TRAINYARD_NO_SUCH_INSTRUCTIONS) + 1);
    EXPECT_STREQ(trainyard_status_text(-1), "unknown status");
    EXPECT_STREQ(trainyard_status_text(999), "unknown status");
}

TEST(Interface, HasTheVersionOfItsHeader) { EXPECT_EQ(trainyard_abi_version(), TRAINYARD_ABI_VERSION); }

}  // namespace
