// What the tests share: how to call the library, and bytes to call it with.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "trainyard/kernels.h"

using Bytes = std::vector<std::uint8_t>;
using Floats = std::vector<float>;

struct Type {
    const char* name;
    std::int32_t number;
    std::size_t elements;
    std::size_t bytes;
    std::vector<std::size_t> halves;  // where in a block a half stands
};

inline void PrintTo(const Type& type, std::ostream* out) { *out << type.name; }

inline const std::vector<Type>& all_types() {
    static const std::vector<Type> types = {
        {"F16", TRAINYARD_F16, 1, 2, {0}},          {"BF16", TRAINYARD_BF16, 1, 2, {0}},
        {"Q4_0", TRAINYARD_Q4_0, 32, 18, {0}},      {"Q4_1", TRAINYARD_Q4_1, 32, 20, {0, 2}},
        {"Q5_0", TRAINYARD_Q5_0, 32, 22, {0}},      {"Q5_1", TRAINYARD_Q5_1, 32, 24, {0, 2}},
        {"Q8_0", TRAINYARD_Q8_0, 32, 34, {0}},      {"Q2_K", TRAINYARD_Q2_K, 256, 84, {80, 82}},
        {"Q3_K", TRAINYARD_Q3_K, 256, 110, {108}},  {"Q4_K", TRAINYARD_Q4_K, 256, 144, {0, 2}},
        {"Q5_K", TRAINYARD_Q5_K, 256, 176, {0, 2}}, {"Q6_K", TRAINYARD_Q6_K, 256, 210, {208}},
    };
    return types;
}

inline std::string name_of(const testing::TestParamInfo<Type>& info) { return info.param.name; }

inline trainyard_options options(std::int32_t instructions, std::size_t tile_bytes = 4096,
                                 std::uint32_t threads = 1) {
    return {tile_bytes, threads, instructions};
}

inline Floats dequantized(const Type& type, const Bytes& input, const trainyard_options& with) {
    Floats output(input.size() / type.bytes * type.elements, -1.0F);
    const std::int32_t status = trainyard_dequantize(type.number, input.data(), input.size(), output.data(),
                                                     output.size(), &with);
    EXPECT_EQ(status, TRAINYARD_OK) << trainyard_status_text(status);
    return output;
}

// Comparing bits tells -0 from 0, and one NaN from another.
inline std::vector<std::uint32_t> bits_of(const Floats& values) {
    std::vector<std::uint32_t> bits(values.size());
    if (!values.empty()) {
        std::memcpy(bits.data(), values.data(), values.size() * sizeof(float));
    }
    return bits;
}

inline Bytes random_bytes(std::size_t count, std::uint32_t seed) {
    std::mt19937 generator(seed);
    std::uniform_int_distribution<int> byte(0, 255);
    Bytes bytes(count);
    for (std::uint8_t& each : bytes) {
        each = static_cast<std::uint8_t>(byte(generator));
    }
    return bytes;
}

inline void put_half(Bytes& bytes, std::size_t at, std::uint16_t half) {
    std::memcpy(bytes.data() + at, &half, sizeof half);
}

inline bool has_avx2() { return trainyard_best_instructions() == TRAINYARD_AVX2; }

// Every path that this processor can run.
inline std::vector<std::int32_t> paths() {
    return has_avx2() ? std::vector<std::int32_t>{TRAINYARD_SCALAR, TRAINYARD_AVX2}
                      : std::vector<std::int32_t>{TRAINYARD_SCALAR};
}
