// Tiles and threads divide the work and change no value; nothing is read or written outside the given memory.

#include <limits>

#include "blocks.h"

namespace {

class Tiles : public testing::TestWithParam<Type> {};

TEST_P(Tiles, NoSizeOfATileChangesAValue) {
    const Type& type = GetParam();
    const Bytes input = random_bytes(37 * type.bytes, 1);
    for (const std::int32_t path : paths()) {
        const Floats whole = dequantized(type, input, options(path, input.size()));
        for (std::size_t tile = 1; tile <= input.size() + type.bytes; tile += 1 + tile / 16) {
            ASSERT_EQ(bits_of(whole), bits_of(dequantized(type, input, options(path, tile)))) << tile;
        }
        const std::size_t most = std::numeric_limits<std::size_t>::max();
        EXPECT_EQ(bits_of(whole), bits_of(dequantized(type, input, options(path, most))));
    }
}

TEST_P(Tiles, NoNumberOfThreadsChangesAValue) {
    const Type& type = GetParam();
    const Bytes input = random_bytes(101 * type.bytes, 2);
    for (const std::int32_t path : paths()) {
        const Floats alone = dequantized(type, input, options(path));
        for (const std::uint32_t threads : {2U, 3U, 7U, 100U, 101U, 102U}) {
            const Floats together = dequantized(type, input, options(path, type.bytes, threads));
            EXPECT_EQ(bits_of(alone), bits_of(together)) << threads;
        }
        const trainyard_options most = options(path, 64, TRAINYARD_MOST_THREADS);
        EXPECT_EQ(bits_of(alone), bits_of(dequantized(type, input, most)));
    }
}

// The sanitizers watch the heap; this watches the neighbours without them.
TEST_P(Tiles, NothingOutsideTheOutputIsWritten) {
    const Type& type = GetParam();
    constexpr float GUARD = 12345.0F;
    for (const std::int32_t path : paths()) {
        for (std::size_t blocks = 0; blocks < 20; ++blocks) {
            const Bytes input = random_bytes(blocks * type.bytes, 3);
            const std::size_t count = blocks * type.elements;
            Floats output(count + 16, GUARD);
            const trainyard_options with = options(path, 50, 2);
            float* const inside = output.data() + 8;
            ASSERT_EQ(trainyard_dequantize(type.number, input.data(), input.size(), inside, count, &with),
                      TRAINYARD_OK);
            for (std::size_t i = 0; i < 8; ++i) {
                ASSERT_EQ(output[i], GUARD);
                ASSERT_EQ(output[count + 8 + i], GUARD);
            }
        }
    }
}

TEST_P(Tiles, TheInputMayStandAtAnyAddress) {
    const Type& type = GetParam();
    const Bytes input = random_bytes(9 * type.bytes, 4);
    for (const std::int32_t path : paths()) {
        const Floats aligned = dequantized(type, input, options(path));
        for (std::size_t offset = 1; offset < 32; ++offset) {
            Bytes moved(offset);
            moved.insert(moved.end(), input.begin(), input.end());
            Floats output(aligned.size());
            const trainyard_options with = options(path);
            ASSERT_EQ(trainyard_dequantize(type.number, moved.data() + offset, input.size(), output.data(),
                                           output.size(), &with),
                      TRAINYARD_OK);
            ASSERT_EQ(bits_of(aligned), bits_of(output)) << offset;
        }
    }
}

INSTANTIATE_TEST_SUITE_P(EveryType, Tiles, testing::ValuesIn(all_types()), name_of);

}  // namespace
