"""Recommend a base image with a reason: PyTorch's, NVIDIA's NGC or CUDA images, AWS's, or Python's.

It names no digest. Look the digest up where the image is pulled, and pin it in the Dockerfile.
"""

from trainyard.image.conflict.declared_versions import DeclaredVersions
from trainyard.image.conflict.version_facts import version_text

NEED_TORCH = {
    *("accelerate", "apex", "deepspeed", "fairscale", "flash-attn"),
    *("flash-attn-3", "lightning", "liger-kernel", "megatron-core", "nemo-toolkit"),
    *("peft", "pytorch-lightning", "sentence-transformers", "timm", "torchaudio"),
    *("torchdata", "torchtune", "torchvision", "transformer-engine", "transformers"),
    *("triton", "trl", "unsloth", "verl", "vllm"),
    *("xformers",),
}
"""Packages that need torch, for a run without an index; with one, the resolver finds torch itself."""


def choose_base(declared: DeclaredVersions, *, efa: bool) -> tuple[str, str]:
    """Return a kind of base image for the declared versions, and the reason; `efa`: the machine has EFA."""
    packages, cuda, base = declared.packages, declared.cuda, declared.base
    if declared.torch is None and (base.kind in ("pytorch", "ngc", "dlc", "other") or declared.has_unstated):
        return (base.image, "it may include torch, and the Dockerfile states no other torch")
    number = f"{version_text(cuda)}.x" if cuda else "VERSION"
    if efa and (declared.has_efa or base.kind == "dlc"):
        return (base.image, "it has EFA, or the Dockerfile installs it")
    if declared.torch is None and not NEED_TORCH & set(packages):
        return (base.image, "no stated package needs torch")
    if declared.torch is None:
        if "transformer-engine" in packages or "megatron-core" in packages:
            return (
                "nvcr.io/nvidia/pytorch:YY.MM-py3",
                "torch is not locked, and NGC's torch, Transformer Engine and NCCL are compiled for each "
                "other",
            )
        if efa:
            return (
                "763104351884.dkr.ecr.REGION.amazonaws.com/pytorch-training",
                "torch is not locked, and the AWS image has torch, NCCL, EFA and its plugin, tested together",
            )
        return (
            "pytorch/pytorch:VERSION-cudaX.Y-cudnn9-runtime",
            "torch is not locked, and this image has it",
        )
    compiled = sorted(
        {"flash-attn", "transformer-engine", "transformer-engine-torch", "apex"} & set(packages)
    )
    if compiled:
        return (
            f"nvidia/cuda:{number}-devel-ubuntu22.04 to build, -runtime- to run",
            f"{', '.join(compiled)} may be compiled, which needs the nvcc of torch's CUDA release; the "
            "last stage needs no nvcc",
        )
    torch = f"torch {declared.torch.text}"
    if not base.cuda and not base.torch:
        return (base.image, f"{torch} includes CUDA, and this image adds no second one")
    if declared.has_unstated:
        return (base.image, "not all packages installed on it are stated, and some of them may need its CUDA")
    return (
        "python:3.11-slim-bookworm",
        f"{torch} includes CUDA, cuDNN and NCCL; a base with CUDA only adds a second one",
    )
