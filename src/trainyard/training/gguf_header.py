"""The header of a GGUF file without the tokenizer in it.

`gguf.GGUFReader` makes objects of every token and merge, which takes many times as long as reading the
weights; this reader passes over arrays. It is imported only where a file is opened, because gguf is slow to.
"""

import struct
from typing import Any

from gguf import GGUFReader
from gguf.constants import GGUFValueType

_KIND_AND_COUNT = struct.Struct("<IQ")
_LENGTH = struct.Struct("<Q")


class GgufHeader(GGUFReader):
    """Scalars and strings of the metadata, and where the tensors lie; arrays have no contents."""

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> tuple[int, list[Any], list[int], list[Any]]:
        if raw_type != GGUFValueType.ARRAY or self.byte_order != "I":
            return super()._get_field_parts(orig_offs, raw_type)
        kind, count = _KIND_AND_COUNT.unpack_from(self.data.data, orig_offs)
        start = orig_offs + _KIND_AND_COUNT.size
        if kind == GGUFValueType.STRING:
            end = self._after_strings(start, count)
        elif kind in self.gguf_scalar_to_np:
            end = start + count * self.gguf_scalar_to_np[GGUFValueType(kind)]().itemsize
        else:
            return super()._get_field_parts(orig_offs, raw_type)
        return end - orig_offs, [], [], [GGUFValueType.ARRAY]

    def _after_strings(self, offset: int, count: int) -> int:
        content = self.data.data
        for _ in range(count):
            offset += _LENGTH.size + _LENGTH.unpack_from(content, offset)[0]
        return offset
