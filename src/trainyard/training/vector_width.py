"""How wide the vectors of the kernels are that torch.compile makes for a CPU.

The compiler writes vectors as wide as the CPU has them. Where it knows none of a width it writes plain C++
and the C++ compiler finds vectors itself; on x86 with 128 bits that one is held to SSE. Kernels that torch
brings along choose for themselves.
"""

import platform

from trainyard.errors import ConfigError

_SSE = "x86-64-v2"


def set_vector_width(bits: int) -> None:
    """Compile kernels for vectors of `bits`. Raises ConfigError where the CPU, or the compiler, has none."""
    from torch._inductor import config

    here = widths_here()
    if bits not in here:
        known = ", ".join(map(str, here)) or "none"
        raise ConfigError(
            f"kernel_optimization.simd_bits: {bits} was asked for, but kernels compiled here have vectors of "
            f"{known} bits. Set one of these, or null for the widest. Nothing was started."
        )
    config.cpp.simdlen = bits
    if bits == 128 and _on_x86():
        config.cpp.march = _SSE


def widths_here() -> list[int]:
    """The widths that kernels can be compiled for on this machine, in bits."""
    from torch._inductor.cpu_vec_isa import valid_vec_isa_list

    explicit = {isa.bit_width() for isa in valid_vec_isa_list()}
    return sorted(explicit | ({128} if _on_x86() else set()))


def vector_width() -> int:
    """The width that kernels are compiled for now, in bits."""
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    return pick_vec_isa().bit_width() or 128


def _on_x86() -> bool:
    return platform.machine() in ("x86_64", "AMD64")
