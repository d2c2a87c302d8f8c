"""The base images of a Dockerfile: what their names and the tables state, and nothing else.

A Python is unknown where the stage may install another one.
"""

import re
from dataclasses import dataclass, replace

from trainyard.image.context.dockerfile import Dockerfile, Stage, is_stated
from trainyard.image.version_facts import Version, minor, row_of, rows_with, version

_OTHER_PYTHON = re.compile(
    r"\b(?:conda|mamba|micromamba|pyenv|deadsnakes|UV_PYTHON)\b|\buv (?:venv|python|sync|run)\b"
    r"|--python[ =]|\bpython3\.\d+\b"
)
"""Text of commands that may install another Python than the base's."""
_SYSTEM_PYTHON = re.compile(r"\bapt(?:-get)?\s[^;&|]*\binstall\b[^;&|]*\bpython3(?:-pip|-dev|-venv)?(?=\s|$)")
"""Installs the Python of the distribution, to which pip then belongs."""
_CUDA_TAG = re.compile(r"cu(?:da)?-?(\d{2})\.?(\d)")
_PYTHON_TAG = re.compile(r"(?:^|[-_])py(?:thon)?(\d)\.?(\d{1,2})(?:[-_.]|$)")


@dataclass(frozen=True)
class BaseImage:
    """The facts in the name of a base image."""

    image: str
    kind: str
    """pytorch, ngc, dlc, cuda, python, rocm, system (a distribution without torch) or other (unknown)."""
    torch: Version = ()
    cuda: Version = ()
    python: Version = ()
    """With its patch release if that is stated."""
    has_compiler: bool = False
    """Whether it includes nvcc."""
    line: int = 0
    glibc: str = ""
    """Such as 2.35, or musl; empty if unknown."""

    @property
    def has_packages(self) -> bool:
        """Whether it may hold Python packages that its name does not state."""
        return self.kind in ("pytorch", "ngc", "dlc", "rocm", "other")


def base_of_stage(parsed: Dockerfile, stage: Stage) -> BaseImage:
    """Return the base image of a stage; its Python is unknown if the stage may install another one."""
    first = parsed.ancestors(stage.number)[0]
    found = base_image(first.image, first.line)
    everything = "\n".join(line.filled for line in parsed.lineage(stage.number) if line.name != "FROM")
    if _OTHER_PYTHON.search(everything):
        return replace(found, python=())
    if found.kind in ("cuda", "system") and _SYSTEM_PYTHON.search(everything):
        release = re.search(r"ubuntu:?(\d{2}\.04)", found.image)
        row = row_of("containers", image="ubuntu", tag=release[1]) if release else {}
        return replace(found, python=version(row.get("python", "")))
    return found


def base_image(image: str, line: int = 0) -> BaseImage:
    """Read the facts in the name of a base image."""
    named = image.partition("@")[0]
    head, _, tag = named.rpartition(":")
    head, tag = (head, tag) if head and "/" not in tag else (named, "")
    if "$" in tag:  # a number that ends at a variable without a value is incomplete
        tag = re.sub(r"[\d.]+$", "", tag.partition("$")[0])
    rows = rows_with("containers", "repository")
    named_so = (row for row in rows if re.search(row["repository"], head))
    known_rows = (row for row in named_so if row["kind"] != "system" or is_stated(image))
    row = next(known_rows, {"kind": "other"})
    facts = dict[str, Version]()
    for name, pattern in (("cuda", _CUDA_TAG), ("python", _PYTHON_TAG)):
        facts |= {name: (int(found[1]), int(found[2]))} if (found := pattern.search(tag)) else {}
    if row["kind"] == "ngc":
        held = row_of("containers", image="nvcr.io/nvidia/pytorch", tag=tag[:5])
        facts = {name: version(held.get(name, "")) for name in ("torch", "cuda", "python")}
    elif "tag" in row:
        facts[row["tag"]] = minor(version(tag)) if row["tag"] == "cuda" else version(tag)
    system = f"{head.rpartition('/')[2]}:{tag}" if row["kind"] in ("cuda", "python", "system") else ""
    known = (one["glibc"] for one in rows_with("containers", "glibc") if re.search(one["named"], system))
    has_compiler = "compiler" in row and row["compiler"] in tag
    return BaseImage(image, row["kind"], **facts, has_compiler=has_compiler, line=line, glibc=next(known, ""))
