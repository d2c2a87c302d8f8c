"""The base images of a Dockerfile: what their names and the tables state, and nothing else.

A Python is unknown where the stage may install another one.
"""

import re
from dataclasses import dataclass, replace

from trainyard.image.conflict.version_facts import Version, minor, row_of, rows_with, version
from trainyard.image.context.dockerfile import Dockerfile, Stage, is_stated

_OTHER_PYTHON = re.compile(
    r"\b(?:conda|mamba|micromamba|pyenv|deadsnakes|UV_PYTHON)\b|\buv (?:venv|python|sync|run)\b"
    r"|--python[ =]|\bpython3\.\d+\b"
)
"""Text of commands that may install another Python than the base's."""
_SYSTEM_PYTHON = re.compile(r"\bapt(?:-get)?\s[^;&|]*\binstall\b[^;&|]*\bpython3(?:-pip|-dev|-venv)?(?=\s|$)")
"""Installs the Python of the distribution, to which pip then belongs."""
_SYSTEMS = {
    *("scratch", "ubuntu", "debian", "alpine", "amazonlinux", "fedora", "rockylinux", "almalinux"),
    *("centos", "busybox", "buildpack-deps"),
}
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
    chain = parsed.ancestors(stage.number)
    numbers = {one.number for one in chain}
    found = base_image(chain[0].image, chain[0].line)
    everything = "\n".join(
        line.filled for line in parsed.instructions if line.stage in numbers and line.name != "FROM"
    )
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
    cuda: Version = (int(m[1]), int(m[2])) if (m := _CUDA_TAG.search(tag)) else ()
    python: Version = (int(m[1]), int(m[2])) if (m := _PYTHON_TAG.search(tag)) else ()
    name = head.rpartition("/")[2]
    known = (row for row in rows_with("containers", "glibc") if re.search(row["named"], f"{name}:{tag}"))
    glibc = next((row["glibc"] for row in known), "")
    if head.endswith("nvidia/pytorch"):
        row = row_of("containers", image="nvcr.io/nvidia/pytorch", tag=tag[:5])
        torch, cuda, python = (version(row.get(key, "")) for key in ("torch", "cuda", "python"))
        return BaseImage(image, "ngc", torch, cuda, python, True, line)
    if "pytorch-training" in head:
        return BaseImage(image, "dlc", version(tag), cuda, python, True, line)
    if head.endswith("pytorch/pytorch"):
        return BaseImage(image, "pytorch", version(tag), cuda, python, "devel" in tag, line)
    if head.endswith("nvidia/cuda"):
        return BaseImage(image, "cuda", (), minor(version(tag)), (), "devel" in tag, line, glibc)
    if name == "python":
        return BaseImage(image, "python", (), (), version(tag), False, line, glibc)
    kind = "system" if name in _SYSTEMS and is_stated(image) else "rocm" if "rocm/" in head else "other"
    return BaseImage(image, kind, (), cuda, python, False, line, glibc if kind == "system" else "")
