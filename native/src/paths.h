// The table that joins the formats to their kernels, one row a type, one table a path.
#pragma once

#include <cstddef>
#include <cstdint>

namespace trainyard {

// Turns `blocks` whole blocks at `input` into floats at `output`.
using Kernel = void (*)(const std::uint8_t* input, std::size_t blocks, float* output);

struct Row {
    std::int32_t type;     // enum trainyard_type
    std::size_t elements;  // of one block
    std::size_t bytes;     // of one block
    Kernel kernel;
};

// The row of `type`, or null.
const Row* scalar_row(std::int32_t type) noexcept;
#ifdef TRAINYARD_WITH_AVX2
const Row* avx2_row(std::int32_t type) noexcept;
#endif

}  // namespace trainyard
