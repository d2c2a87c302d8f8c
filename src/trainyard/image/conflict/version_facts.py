"""Tables of versions that go together: torch, CUDA, Python, drivers, GPUs, NCCL, EFA, compiled packages.

Versions that are not listed are unknown, and the rules report nothing about them. Each table names its
source; a version without one is not in it. "Metadata" means the requirements of a release in the package
index, read by resolving it with uv for Linux and Python 3.12 in November 2026.
"""

import re
from dataclasses import dataclass

Version = tuple[int, ...]


@dataclass(frozen=True)
class TorchRelease:
    """A minor release of torch, as its official wheels are built."""

    cuda: tuple[Version, ...]
    """The CUDA releases that it is built with."""
    default_cuda: Version
    """The CUDA release of the wheel on PyPI."""
    oldest_python: Version
    """The oldest Python that has wheels."""
    newest_python: Version


TORCH: dict[Version, TorchRelease] = {
    (2, 4): TorchRelease(((11, 8), (12, 1), (12, 4)), (12, 1), (3, 8), (3, 12)),
    (2, 5): TorchRelease(((11, 8), (12, 1), (12, 4)), (12, 4), (3, 9), (3, 12)),
    (2, 6): TorchRelease(((11, 8), (12, 4), (12, 6)), (12, 4), (3, 9), (3, 13)),
    (2, 7): TorchRelease(((11, 8), (12, 6), (12, 8)), (12, 6), (3, 9), (3, 13)),
    (2, 8): TorchRelease(((12, 6), (12, 8), (12, 9)), (12, 8), (3, 9), (3, 13)),
    (2, 9): TorchRelease(((12, 6), (12, 8), (13, 0)), (12, 8), (3, 10), (3, 14)),
    (2, 10): TorchRelease(((12, 6), (12, 8), (13, 0)), (12, 8), (3, 10), (3, 14)),
    (2, 11): TorchRelease(((12, 6), (12, 8), (13, 0)), (13, 0), (3, 10), (3, 14)),
    (2, 12): TorchRelease(((12, 6), (13, 0), (13, 2)), (13, 0), (3, 10), (3, 14)),
    (2, 13): TorchRelease(((12, 6), (13, 0), (13, 2)), (13, 0), (3, 10), (3, 14)),
    (2, 14): TorchRelease(((12, 6), (13, 0), (13, 2)), (13, 0), (3, 10), (3, 14)),
}
"""Stable and experimental builds. Pythons whose wheels RELEASE.md calls experimental are left out.

Sources: the matrix of PyTorch's RELEASE.md as of 2.14, every row compared in November 2026; `default_cuda`
from metadata of 2.4.1 to 2.14.0 (nvidia-cuda-runtime). 2.13.0 has no wheel for Python 3.9 or 3.15.
"""
BUILT_BESIDE: dict[Version, Version] = {(12, 8): (2, 7), (12, 9): (2, 8)}
"""A CUDA release -> the torch from which on its builds may exist without being in the matrix.

Source: public Dockerfiles that install torch 2.9 to 2.13 with cu129 from PyTorch's own index, such as verl's
docker/Dockerfile.stable.vllm. That a build is not in the matrix proves nothing for these.
"""


@dataclass(frozen=True)
class TorchLibraries:
    """The exact requirements of torch's wheel on PyPI."""

    cudnn: Version
    nccl: Version


LIBRARIES: dict[Version, TorchLibraries] = {
    (2, 4): TorchLibraries((9, 1, 0), (2, 20, 5)),
    (2, 5): TorchLibraries((9, 1, 0), (2, 21, 5)),
    (2, 6): TorchLibraries((9, 1, 0), (2, 21, 5)),
    (2, 7): TorchLibraries((9, 5, 1), (2, 26, 2)),
    (2, 8): TorchLibraries((9, 10, 2), (2, 27, 3)),
    (2, 9): TorchLibraries((9, 10, 2), (2, 27, 5)),
    (2, 10): TorchLibraries((9, 10, 2), (2, 27, 5)),
    (2, 11): TorchLibraries((9, 19, 0), (2, 28, 9)),
    (2, 12): TorchLibraries((9, 20, 0), (2, 29, 7)),
    (2, 13): TorchLibraries((9, 20, 0), (2, 29, 7)),
    (2, 14): TorchLibraries((9, 24, 0), (2, 30, 7)),
}
"""A minor release of torch -> cuDNN and NCCL of the wheel on PyPI, which has TORCH's `default_cuda`.

Source: metadata of 2.4.1, 2.5.1, 2.6.0, 2.7.1, 2.8.0, 2.9.1, 2.10.0, 2.11.0, 2.12.0, 2.14.0, and for 2.13
requirements-training.txt.
"""
OTHER_CUDNN: dict[tuple[Version, Version], Version] = {
    ((2, 6), (12, 6)): (9, 5, 1),
    ((2, 7), (11, 8)): (9, 1, 0),
    ((2, 7), (12, 8)): (9, 7, 1),
    ((2, 8), (12, 6)): (9, 10, 2),
    ((2, 8), (12, 9)): (9, 10, 2),
    ((2, 9), (12, 6)): (9, 10, 2),
    ((2, 9), (13, 0)): (9, 13, 0),
    ((2, 10), (12, 6)): (9, 10, 2),
    ((2, 10), (13, 0)): (9, 15, 1),
    ((2, 11), (12, 6)): (9, 10, 2),
    ((2, 12), (12, 6)): (9, 10, 2),
    ((2, 12), (13, 2)): (9, 20, 0),
    ((2, 13), (12, 6)): (9, 10, 2),
    ((2, 13), (13, 2)): (9, 20, 0),
    ((2, 14), (12, 6)): (9, 10, 2),
    ((2, 14), (13, 2)): (9, 24, 0),
}
"""torch and a CUDA other than its default -> cuDNN. Source: RELEASE.md.

2.11 with CUDA 12.8 is left out: RELEASE.md has 9.17.1 for the default build too, and metadata says 9.19.0.
"""
VLLM_TORCH: dict[Version, Version] = {
    (0, 8, 3): (2, 6, 0),
    (0, 8, 4): (2, 6, 0),
    (0, 8, 5): (2, 6, 0),
    (0, 9, 0): (2, 7, 0),
    (0, 9, 1): (2, 7, 0),
    (0, 9, 2): (2, 7, 0),
    (0, 10, 2): (2, 8, 0),
    (0, 11, 0): (2, 8, 0),
    (0, 11, 1): (2, 9, 0),
    (0, 11, 2): (2, 9, 0),
    (0, 21, 0): (2, 11, 0),
    (0, 30, 0): (2, 13, 0),
}
"""vLLM is compiled against exactly one torch.

Source: metadata, as the oldest and the newest vLLM that resolves with a torch, and those between them; 0.30.0
from requirements-verl.txt.
"""
VERL_VLLM: dict[Version, tuple[Version, Version]] = {
    (0, 6, 0): ((0, 7, 3), (0, 9, 1)),
    (0, 7, 1): ((0, 8, 5), (0, 12, 0)),
    (0, 8, 0): ((0, 8, 5), (0, 12, 0)),
    (0, 9, 0): ((0, 18, 0), ()),
}
"""verl -> the oldest and the newest vLLM of its extra `vllm`; () is none. Source: METADATA of the wheels."""
VERL_TRANSFORMERS: dict[Version, tuple[Version, Version]] = {(0, 9, 0): ((5, 5, 3), (5, 11))}
"""verl -> the oldest allowed transformers, and the first that is too new. Source: METADATA of the wheel."""
TORCH_PAIRS: dict[str, dict[Version, Version]] = {
    "torchvision": {(2, minor): (0, minor + 15) for minor in range(4, 14)},
}
"""A package -> torch's minor release -> the package's release that is compiled against it.

Source: metadata of torchvision 0.19.1, 0.20.1, 0.21.0, 0.22.1, 0.23.0, 0.24.1, 0.25.0, 0.26.0, 0.27.0 and
0.28.0, each of which requires exactly one torch. torchaudio is not here: its 2.11 names no torch.
"""
NGC: dict[str, tuple[Version, Version, Version]] = {
    "24.10": ((2, 5), (12, 6), (3, 10)),
    "24.11": ((2, 6), (12, 6), (3, 12)),
    "25.01": ((2, 6), (12, 8), (3, 12)),
    "25.03": ((2, 7), (12, 8), (3, 12)),
    "25.04": ((2, 7), (12, 9), (3, 12)),
    "25.05": ((2, 8), (12, 9), (3, 12)),
    "25.06": ((2, 8), (12, 9), (3, 12)),
    "25.09": ((2, 9), (13, 0), (3, 12)),
    "25.10": ((2, 9), (13, 0), (3, 12)),
    "25.12": ((2, 10), (13, 1), (3, 12)),
}
"""A release of nvcr.io/nvidia/pytorch -> torch, CUDA, Python.

Source: NVIDIA's own repositories. The release compatibility matrix of triton-inference-server/server at
0f963c9a, table trtllm-python-py3, names the torch of each release (such as 2.7.0a0+7c8ec84dab.nv25.3) with
CUDA and Python. For 25.09 torch is from the README of triton-inference-server/pytorch_backend of that
release, CUDA and Python from the table vllm-python-py3. 25.12 agrees with the container's release notes.
"""
DRIVERS: dict[int, Version] = {11: (450, 80), 12: (525,), 13: (580,)}
"""The oldest Linux driver for a major release of CUDA.

Source: NVIDIA's CUDA compatibility guide, table 1 of minor version compatibility: at least 450 (its note:
450.80.02), 525 and 580.
"""
OLDEST_CUDA: dict[str, Version] = {
    "sm_80": (11, 0),
    "sm_86": (11, 1),
    "sm_89": (11, 8),
    "sm_90": (11, 8),
    "sm_100": (12, 8),
    "sm_103": (12, 9),
    "sm_120": (12, 8),
}
"""The first CUDA that compiles for an architecture.

Source: clang's own table in llvm/llvm-project, `MinVersionForOffloadArch` in clang/lib/Basic/Cuda.cpp;
NVIDIA's CUDA Features Archive 12.9 names sm_103, too.
"""
OLDEST_EFA_INSTALLER, OLDEST_EFA_PLUGIN, OLDEST_EFA_NCCL = (1, 29), (1, 7, 3), (2, 18, 5)
"""For p5 and later.

Source: aws-samples/awsome-distributed-training at 7217859f, 1.architectures/efa-cheatsheet.md.
"""
OLDEST_MODERN_PLUGIN = (1, 7)
"""From this release on, the plugin finds RDMA by itself, and variables that request it do harm.

Source: aws/aws-ofi-nccl at 2daf7d30, doc/efa-env-var.md and src/platform-aws.cpp.
"""
OLDEST_PYTHON = (3, 11)
"""The oldest Python that Trainyard runs on."""


def version(text: str) -> Version:
    """The leading numbers, of 9 digits at most: `2.5.1+cu124` gives (2, 5, 1), `2.7.0a0` gives (2, 7, 0)."""
    found = re.match(r"\d{1,9}(?!\d)(?:\.\d{1,9}(?!\d))*", text)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def minor(found: Version) -> Version:
    """Return the first two numbers of a version."""
    return found[:2]


def version_text(found: Version) -> str:
    """Return the text of a version."""
    return ".".join(str(number) for number in found)


def same_prefix(one: Version, other: Version) -> bool:
    """Return whether two versions agree as far as both are known."""
    length = min(len(one), len(other))
    return one[:length] == other[:length]
