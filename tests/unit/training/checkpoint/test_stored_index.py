"""The reader of a checkpoint's index reads what every supported Python writes, and nothing else."""

import io
import os
import pathlib
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING, Metadata, TensorProperties

from trainyard.training.checkpoint.stored_index import IndexUnpickler

MEMBER = _MEM_FORMAT_ENCODING.TORCH_CONTIGUOUS_FORMAT


class Calls:
    """An object that is pickled as the call of a function."""

    def __init__(self, function: Callable[..., Any], *arguments: object) -> None:
        self.called = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[object, ...]]:
        return self.called


def read(content: bytes) -> Any:
    return IndexUnpickler(io.BytesIO(content)).load()


def test_what_every_supported_python_writes_is_read() -> None:
    assert read(pickle.dumps(Calls(getattr, _MEM_FORMAT_ENCODING, MEMBER.name))) is MEMBER, "by 3.11.2"
    properties = TensorProperties(dtype=torch.bfloat16)
    assert read(pickle.dumps(properties)) == properties
    for module in ("pathlib", "pathlib._local"):
        content = f"c{module}\nPosixPath\n(S'a'\nS'b'\ntR.".encode()
        assert read(content) == pathlib.PurePosixPath("a/b")


@pytest.mark.parametrize(
    "planted",
    [
        Calls(getattr, Metadata, "__init__"),
        Calls(getattr, _MEM_FORMAT_ENCODING, "__class__"),
        Calls(getattr, _MEM_FORMAT_ENCODING, "NONE_OF_THEM"),
        Calls(getattr, "text", "format"),
        Calls(os.getcwd),
        Calls(eval, "1"),
    ],
)
def test_classes_that_no_index_holds_are_refused(planted: Calls) -> None:
    with pytest.raises(pickle.UnpicklingError):
        read(pickle.dumps(planted))
