"""The language of Terraform: blocks, arguments and expressions as text, in the layout of `terraform fmt`.

    Block, plain values, Raw, Json  ──>  HCL

It knows nothing of AWS and of the list of resources; `special` writes the values that the caller adds.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Special = Callable[[Any, int], str | None]
"""Returns the expression of a value at a depth; None for a plain value."""
_SHORT = 80


@dataclass(frozen=True)
class Raw:
    """An expression that is written unchanged."""

    text: str


@dataclass(frozen=True)
class Json:
    """A document that a provider takes as JSON text."""

    value: Any


@dataclass(frozen=True)
class HclBlock:
    """A block: its arguments, then the blocks in it."""

    arguments: Mapping[str, Any]
    blocks: Sequence[tuple[str, "HclBlock"]] = ()


@dataclass(frozen=True)
class Writer:
    """Writes blocks; `special` is called first for every value."""

    special: Special

    def block(self, heading: str, block: HclBlock, depth: int = 0, comment: str = "") -> str:
        """A block, with its comment before it. Equal signs of neighbours stand below each other."""
        space = "  " * depth
        lines = [f"{space}# {comment}"] if comment else []
        lines.append(f"{space}{heading} {{")
        lines += self._arguments(block.arguments, depth + 1)
        for number, (name, inner) in enumerate(block.blocks):
            if block.arguments or number:
                lines.append("")
            lines.append(self.block(name, inner, depth + 1).rstrip("\n"))
        return "\n".join([*lines, f"{space}}}"]) + "\n"

    def _arguments(self, arguments: Mapping[str, Any], depth: int) -> list[str]:
        lines: list[str] = []
        together: list[tuple[str, str]] = []  # neighbours of one line each are aligned
        space = "  " * depth

        def flush() -> None:
            width = max((len(name) for name, _ in together), default=0)
            lines.extend(f"{space}{name.ljust(width)} = {value}" for name, value in together)
            together.clear()

        for name, value in arguments.items():
            written = self.expression(value, depth)
            if "\n" in written:
                flush()
                lines.append(f"{space}{name} = {written}")
            else:
                together.append((name, written))
        flush()
        return lines

    def expression(self, value: Any, depth: int) -> str:
        """The value as an expression."""
        if (found := self.special(value, depth)) is not None:
            return found
        match value:
            case Raw(found):
                return found
            case Json(inner):
                return f"jsonencode({self.expression(inner, depth)})"
            case bool() | int() | str():
                return json.dumps(value)
            case Mapping():
                keyed = {_key(key): inner for key, inner in value.items()}
                return "\n".join(["{", *self._arguments(keyed, depth + 1), "  " * depth + "}"])
            case list() | tuple():
                return self._list(value, depth)
        raise TypeError(f"{value!r} cannot be written in Terraform")

    def _list(self, values: Sequence[Any], depth: int) -> str:
        inner = [self.expression(each, depth + 1) for each in values]
        if not any("\n" in each for each in inner) and sum(map(len, inner)) < _SHORT:
            return f"[{', '.join(inner)}]"
        space = "  " * (depth + 1)
        return "\n".join(["[", *(f"{space}{each}," for each in inner), "  " * depth + "]"])


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", key) else json.dumps(key)
