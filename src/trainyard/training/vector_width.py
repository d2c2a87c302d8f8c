"""Set the vector width of the CPU kernels that torch.compile generates.

By default the compiler uses the widest vectors of the CPU. For a width that it does not support, it writes
plain C++, which the C++ compiler vectorises; for 128 bits on x86, that compiler is restricted to SSE. The
kernels that ship with torch choose their own width.
"""

import platform

from trainyard.errors import ConfigError

_SSE = "x86-64-v2"


def set_vector_width(bits: int) -> None:
    """Compile kernels for vectors of `bits`. Raises ConfigError when the CPU or the compiler has none."""
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
    """The vector widths in bits for which kernels can be compiled on this machine."""
    from torch._inductor.cpu_vec_isa import valid_vec_isa_list

    explicit = {isa.bit_width() for isa in valid_vec_isa_list()}
    return sorted(explicit | ({128} if _on_x86() else set()))


def vector_width() -> int:
    """The vector width in bits for which kernels are currently compiled."""
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    return pick_vec_isa().bit_width() or 128


def _on_x86() -> bool:
    return platform.machine() in ("x86_64", "AMD64")
