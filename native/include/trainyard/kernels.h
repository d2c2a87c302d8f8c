/* The C interface of the kernels: quantised blocks of a GGUF file to float32.
 *
 * Every function is safe to call from several threads, keeps no state and throws nothing. Sizes are explicit
 * and checked; input and output must not overlap. Any bytes are valid input: a block has no invalid value.
 */
#ifndef TRAINYARD_KERNELS_H
#define TRAINYARD_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#if defined(TRAINYARD_BUILDING)
#define TRAINYARD_API __attribute__((visibility("default")))
#else
#define TRAINYARD_API
#endif

#ifdef __cplusplus
#define TRAINYARD_NOEXCEPT noexcept
extern "C" {
#else
#define TRAINYARD_NOEXCEPT
#endif

/* Changes whenever a caller compiled or written against the former interface would be wrong. */
#define TRAINYARD_ABI_VERSION 1

/* Most threads that one call may ask for. */
#define TRAINYARD_MOST_THREADS 1024

/* The numbers are ggml's own (ggml.h, enum ggml_type), as they stand in a GGUF file. */
enum trainyard_type {
    TRAINYARD_F16 = 1,
    TRAINYARD_Q4_0 = 2,
    TRAINYARD_Q4_1 = 3,
    TRAINYARD_Q5_0 = 6,
    TRAINYARD_Q5_1 = 7,
    TRAINYARD_Q8_0 = 8,
    TRAINYARD_Q2_K = 10,
    TRAINYARD_Q3_K = 11,
    TRAINYARD_Q4_K = 12,
    TRAINYARD_Q5_K = 13,
    TRAINYARD_Q6_K = 14,
    TRAINYARD_BF16 = 30
};

/* Which code runs. All give the same bits. */
enum trainyard_instructions {
    TRAINYARD_BEST = 0, /* the widest that this processor has */
    TRAINYARD_SCALAR = 1,
    TRAINYARD_AVX2 = 2
};

enum trainyard_status {
    TRAINYARD_OK = 0,
    TRAINYARD_UNKNOWN_TYPE = 1,
    TRAINYARD_NULL_POINTER = 2,
    TRAINYARD_PARTIAL_BLOCK = 3,     /* the input is not a whole number of blocks */
    TRAINYARD_SIZE_MISMATCH = 4,     /* the output does not have exactly the elements of the input's blocks */
    TRAINYARD_UNALIGNED_OUTPUT = 5,  /* the output's address is not that of a float */
    TRAINYARD_BAD_TILE = 6,          /* tile_bytes is 0 */
    TRAINYARD_BAD_THREADS = 7,       /* threads is 0 or above TRAINYARD_MOST_THREADS */
    TRAINYARD_NO_SUCH_INSTRUCTIONS = 8
};

struct trainyard_options {
    size_t tile_bytes;    /* input bytes handled at a time, rounded down to whole blocks, at least one */
    uint32_t threads;     /* at most; a thread gets at least one tile */
    int32_t instructions; /* enum trainyard_instructions */
};

/* TRAINYARD_ABI_VERSION of the library, which may differ from the header's. */
TRAINYARD_API int32_t trainyard_abi_version(void) TRAINYARD_NOEXCEPT;

/* What TRAINYARD_BEST means on this processor: TRAINYARD_SCALAR or TRAINYARD_AVX2. */
TRAINYARD_API int32_t trainyard_best_instructions(void) TRAINYARD_NOEXCEPT;

/* Elements and bytes of one block of `type` (enum trainyard_type). */
TRAINYARD_API int32_t trainyard_block(int32_t type, size_t *elements, size_t *bytes) TRAINYARD_NOEXCEPT;

/* Turns the blocks in `input` into `output`. Returns enum trainyard_status; on anything but TRAINYARD_OK
 * nothing was read or written. */
TRAINYARD_API int32_t trainyard_dequantize(int32_t type, const void *input, size_t input_bytes,
                                           float *output, size_t output_elements,
                                           const struct trainyard_options *options) TRAINYARD_NOEXCEPT;

/* One English line on a status; never null. */
TRAINYARD_API const char *trainyard_status_text(int32_t status) TRAINYARD_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#endif
