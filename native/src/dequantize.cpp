// The C interface: checks, tiles and threads. What a block means is the affair of the paths.

#include <algorithm>
#include <cstdint>
#include <exception>
#include <thread>
#include <vector>

#include "paths.h"
#include "trainyard/kernels.h"

namespace trainyard {
namespace {

std::int32_t best_instructions() noexcept {
#ifdef TRAINYARD_WITH_AVX2
    if (__builtin_cpu_supports("avx2")) {
        return TRAINYARD_AVX2;
    }
#endif
    return TRAINYARD_SCALAR;
}

// The row of `type` for `instructions`; null when the processor or this library does not have them.
const Row* row_for(std::int32_t type, std::int32_t instructions) noexcept {
    const std::int32_t wanted = instructions == TRAINYARD_BEST ? best_instructions() : instructions;
    if (wanted == TRAINYARD_SCALAR) {
        return scalar_row(type);
    }
#ifdef TRAINYARD_WITH_AVX2
    if (wanted == TRAINYARD_AVX2 && best_instructions() == TRAINYARD_AVX2) {
        return avx2_row(type);
    }
#endif
    return nullptr;
}

// A checked call: `blocks` blocks in tiles of `tile_blocks`, the last one possibly smaller.
struct Work {
    const Row& row;
    const std::uint8_t* input;
    float* output;
    std::size_t blocks;
    std::size_t tile_blocks;

    std::size_t tiles() const { return blocks / tile_blocks + (blocks % tile_blocks != 0); }

    void tile(std::size_t number) const {
        const std::size_t first = number * tile_blocks;
        const std::size_t count = std::min(tile_blocks, blocks - first);
        row.kernel(input + first * row.bytes, count, output + first * row.elements);
    }

    // Share `share` of `shares`: neighbouring tiles, so that two threads meet at one cache line at most.
    void share(std::size_t share, std::size_t shares) const {
        const std::size_t each = tiles() / shares, more = tiles() % shares;
        const std::size_t first = each * share + std::min(share, more);
        const std::size_t last = first + each + (share < more ? 1 : 0);
        for (std::size_t number = first; number < last; ++number) {
            tile(number);
        }
    }
};

// The caller's thread does share 0, and every share for which the system gives no thread.
void in_threads(const Work& work, std::size_t shares) noexcept {
    std::vector<std::thread> others;
    try {
        others.reserve(shares - 1);
        for (std::size_t share = 1; share < shares; ++share) {
            others.emplace_back(&Work::share, &work, share, shares);
        }
    } catch (const std::exception&) {  // no memory or no thread left: slower, the same result
    }
    for (std::size_t share = others.size() + 1; share < shares; ++share) {
        work.share(share, shares);
    }
    work.share(0, shares);
    for (std::thread& other : others) {
        other.join();
    }
}

std::int32_t check_options(const trainyard_options& options) noexcept {
    if (options.tile_bytes == 0) {
        return TRAINYARD_BAD_TILE;
    }
    if (options.threads == 0 || options.threads > TRAINYARD_MOST_THREADS) {
        return TRAINYARD_BAD_THREADS;
    }
    return TRAINYARD_OK;
}

// Divisions only: no product of sizes that a caller made up may wrap around.
std::int32_t check_sizes(const Row& row, std::size_t input_bytes, std::size_t output_elements) noexcept {
    if (input_bytes % row.bytes != 0) {
        return TRAINYARD_PARTIAL_BLOCK;
    }
    const bool whole = output_elements % row.elements == 0;
    return whole && output_elements / row.elements == input_bytes / row.bytes ? TRAINYARD_OK
                                                                              : TRAINYARD_SIZE_MISMATCH;
}

const char* text_of(std::int32_t status) noexcept {
    switch (status) {
        case TRAINYARD_OK:
            return "done";
        case TRAINYARD_UNKNOWN_TYPE:
            return "no kernel for this type";
        case TRAINYARD_NULL_POINTER:
            return "a pointer is null";
        case TRAINYARD_PARTIAL_BLOCK:
            return "the input is not a whole number of blocks";
        case TRAINYARD_SIZE_MISMATCH:
            return "the output does not have the elements of the input's blocks";
        case TRAINYARD_UNALIGNED_OUTPUT:
            return "the output is not aligned to a float";
        case TRAINYARD_BAD_TILE:
            return "tile_bytes must be at least 1";
        case TRAINYARD_BAD_THREADS:
            return "threads must be from 1 to 1024";
        case TRAINYARD_NO_SUCH_INSTRUCTIONS:
            return "this processor or this library does not have these instructions";
        default:
            return "unknown status";
    }
}

}  // namespace
}  // namespace trainyard

using namespace trainyard;

std::int32_t trainyard_abi_version() noexcept { return TRAINYARD_ABI_VERSION; }

std::int32_t trainyard_best_instructions() noexcept { return best_instructions(); }

std::int32_t trainyard_block(std::int32_t type, std::size_t* elements, std::size_t* bytes) noexcept {
    const Row* row = scalar_row(type);
    if (row == nullptr) {
        return TRAINYARD_UNKNOWN_TYPE;
    }
    if (elements == nullptr || bytes == nullptr) {
        return TRAINYARD_NULL_POINTER;
    }
    *elements = row->elements;
    *bytes = row->bytes;
    return TRAINYARD_OK;
}

std::int32_t trainyard_dequantize(std::int32_t type, const void* input, std::size_t input_bytes,
                                  float* output, std::size_t output_elements,
                                  const trainyard_options* options) noexcept {
    if (scalar_row(type) == nullptr) {
        return TRAINYARD_UNKNOWN_TYPE;
    }
    const bool no_input = input == nullptr && input_bytes != 0;
    const bool no_output = output == nullptr && output_elements != 0;
    if (options == nullptr || no_input || no_output) {
        return TRAINYARD_NULL_POINTER;
    }
    if (const std::int32_t refused = check_options(*options)) {
        return refused;
    }
    const Row* row = row_for(type, options->instructions);
    if (row == nullptr) {
        return TRAINYARD_NO_SUCH_INSTRUCTIONS;
    }
    if (const std::int32_t refused = check_sizes(*row, input_bytes, output_elements)) {
        return refused;
    }
    if (reinterpret_cast<std::uintptr_t>(output) % alignof(float) != 0) {
        return TRAINYARD_UNALIGNED_OUTPUT;
    }
    const std::size_t tile_blocks = std::max<std::size_t>(options->tile_bytes / row->bytes, 1);
    const auto* bytes = static_cast<const std::uint8_t*>(input);
    const Work work{*row, bytes, output, input_bytes / row->bytes, tile_blocks};
    if (work.blocks != 0) {
        in_threads(work, std::min<std::size_t>(options->threads, work.tiles()));
    }
    return TRAINYARD_OK;
}

const char* trainyard_status_text(std::int32_t status) noexcept { return text_of(status); }
