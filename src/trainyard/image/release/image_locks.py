"""The locks of an image: the files with the content that its labels name, and the packages that they pin.

A file of the same name and another content is another lock, and decides nothing about the image.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from trainyard.image.building.build_request import LOCKS_LABEL
from trainyard.image.conflict.stated_packages import locked_packages
from trainyard.run.untrusted_files import read_text

_PYTHONS = tuple(f"3.{number}" for number in range(8, 21))


def find_locks(labels: Mapping[str, str], folders: Iterable[Path]) -> tuple[dict[str, str], list[str]]:
    """Return name -> content of the locks that the labels name, and the names of those that are not found.

    A lock is found in the folders that have a file of that name and content.
    """
    places = list(dict.fromkeys(folders))
    texts: dict[str, str] = {}
    named = dict(one.partition("@")[::2] for one in labels.get(LOCKS_LABEL, "").split())
    for name, digest in named.items():
        for file in (folder / name for folder in places):
            if digest and name not in texts and file.is_file():
                text = read_text(file)
                texts |= {name: text} if hashlib.sha256(text.encode()).hexdigest() == digest else {}
    return texts, [name for name in named if name not in texts]


def demanded_packages(texts: Sequence[str], markers: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return Python's version -> package -> version: the pins of the locks that apply with these markers."""
    return {
        python: {
            name: pin
            for text in texts
            for name, pin in locked_packages(text, {**markers, "python_version": python}).items()
        }
        for python in _PYTHONS
    }
