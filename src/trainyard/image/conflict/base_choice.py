"""Recommend a base image with a reason: NVIDIA's NGC or CUDA images, AWS's, or Python's.

Names and versions are those of the tables. It names no digest: look that up where the image is pulled.
"""

import re

from trainyard.image.conflict.declared_versions import DeclaredVersions
from trainyard.image.version_facts import fact, minor, row_of, rows_with, version_text


def choose_base(declared: DeclaredVersions, *, efa: bool) -> tuple[str, str]:
    """Return a kind of base image for the declared versions, and the reason; `efa`: the machine has EFA."""
    packages, base, torch = set(declared.packages), declared.base, declared.torch
    compiled, jit = {*fact("pairs", "compiles")}, {*fact("pairs", "jit")}
    has_unstated = declared.is_unread or bool(declared.installed.unstated)
    is_locked = torch is not None and not torch.is_resolved
    if torch is None and (base.has_packages or has_unstated):
        return base.image, "it may include torch, and the Dockerfile states no other torch"
    if efa and (declared.has_efa or base.kind == "dlc"):
        return base.image, "it has EFA, or the Dockerfile installs it"
    if torch is None and not (compiled | jit | {*fact("pairs", "needs_torch")}) & packages:
        return base.image, "no stated package needs torch"
    if not is_locked and {"transformer-engine", "megatron-core"} & packages:
        tag = max(row["tag"] for row in rows_with("containers", "image", "torch"))
        why = "torch is not locked, and NGC's torch, Transformer Engine and NCCL are compiled for each other"
        return f"nvcr.io/nvidia/pytorch:{tag}-py3", why
    if not is_locked and efa:
        why = "torch is not locked, and the AWS image has torch, NCCL, EFA and its plugin, tested together"
        return str(fact("containers", "dlc")), why
    release = row_of("cuda", toolkit=version_text(minor(declared.cuda))).get("release", "")
    named = ", ".join(sorted(compiled & packages))
    if named and release:
        why = f"{named} may be compiled, which needs the nvcc of torch's CUDA release"
        return f"nvidia/cuda:{release}-devel-ubuntu22.04", f"{why}; the last stage needs no nvcc"
    if named or has_unstated:
        return base.image, "what is installed on it may need what it holds"
    is_full = base.kind == "python" and not re.search(r"slim|alpine", base.image)
    has_gcc = base.has_compiler or is_full or re.search(r"\b(?:gcc|build-essential)\b", declared.commands)
    if jit & packages and base.kind in ("python", "cuda") and not has_gcc:
        why = f"{', '.join(sorted(jit & packages))} compiles kernels when it runs: this has gcc and headers"
        return f"python:{version_text(minor(base.python)) or '3.12'}-bookworm", why
    if not (base.cuda or base.torch):
        return base.image, "no other image is better"
    why = "torch's wheels include CUDA, cuDNN and NCCL; a base with CUDA adds more"
    return "python:3.12-slim-bookworm", why
