"""Read the header of a GGUF file without its tokenizer.

`gguf.GGUFReader` makes an object of every token and merge, which takes many times as long as reading the
weights. This reader skips arrays. The module is imported only when a file is opened, because importing gguf
is slow.
"""

import struct
from typing import Any

from gguf import GGUFReader
from gguf.constants import GGUFValueType

_KIND_AND_COUNT = struct.Struct("<IQ")
_LENGTH = struct.Struct("<Q")


class GgufHeader(GGUFReader):
    """Reads scalars and strings of the metadata and the locations of tensors; arrays have no contents."""

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
