"""Sizes for people. Bytes are decimal (1 GB = 10⁹)."""

_UNITS = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3))


def format_size(count: float) -> str:
    """`912 B`, `43.1 MB`, `8.8 GB`."""
    unit, scale = next(((unit, scale) for unit, scale in _UNITS if count >= scale * 0.9995), ("B", 1.0))
    return f"{count / scale:.1f} {unit}" if scale > 1 else f"{count:.0f} B"
