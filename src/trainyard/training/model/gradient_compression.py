"""PowerSGD (arXiv:1905.13727): all-reduce gradients as products of thin matrices, with error feedback.

    M = gradient + error    P = sum of M Q, orthonormal    Q = mean of Mᵀ P    P Qᵀ    error = M - P Qᵀ

Q and the errors are kept between steps, so they are part of the checkpoint; each process has its own errors.
They belong to parameters and not to DDP's buckets, because the buckets change after a resume. Only replicated
models are supported: sharded gradients are not compressed.

This is an option for slow networks, off unless `compute.gradient_compression` is set: its gradients are
approximate. Nothing else depends on it.
"""

import logging
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Compression:
    """The rank of the compression and the ratio that it achieves."""

    rank: int
    """The largest number of columns of the thin matrices."""
    ratio: float
    """Elements of all gradients divided by elements sent, including gradients that are sent uncompressed."""


def choose_rank(shapes: Sequence[tuple[int, ...]], ratio: float) -> Compression:
    """Choose the largest rank that compresses gradients of these shapes by at least `ratio`; else rank 1."""
    total = sum(math.prod(shape) for shape in shapes)
    most = max((min(shape) for shape in shapes if len(shape) == 2), default=1)
    # The amount sent grows with the rank, so the ranks that compress enough come first.
    enough = bisect_right(range(1, most + 1), total / ratio, key=lambda rank: _sent_elements(shapes, rank))
    rank = max(1, enough)
    return Compression(rank, total / _sent_elements(shapes, rank))


def _sent_elements(shapes: Sequence[tuple[int, ...]], rank: int) -> int:
    """Elements that each process sends per step."""
    return sum(rank * sum(shape) if is_compressed(shape, rank) else math.prod(shape) for shape in shapes)


def is_compressed(shape: tuple[int, ...], rank: int) -> bool:
    """Return whether the thin matrices of a gradient have fewer elements than the gradient itself."""
    return len(shape) == 2 and rank * sum(shape) < math.prod(shape)


class CompressedExchange:
    """Computes the approximate mean of the gradients over all processes."""

    def __init__(self, model: nn.Module, mesh: DeviceMesh, *, ratio: float, seed: int) -> None:
        self._group = mesh.get_group()
        self._size = mesh.size()
        named = dict(model.named_parameters())
        self.compression = choose_rank([tuple(p.shape) for p in named.values()], ratio)
        if self.compression.ratio < ratio:
            _logger.warning(
                "kernel_optimization.compression_ratio: rank 1 compresses these gradients by %.1f, not by %g",
                self.compression.ratio,
                ratio,
            )
        rank = self.compression.rank
        self._thin = {n: p for n, p in named.items() if is_compressed(tuple(p.shape), rank)}
        self._whole = [p for n, p in named.items() if n not in self._thin]
        generator = torch.Generator().manual_seed(seed)
        self._factors = {
            name: torch.randn(p.shape[1], rank, generator=generator).to(p.device)
            for name, p in self._thin.items()
        }
        # Each process has its own error. One DTensor holds all of them, so that a checkpoint stores it like
        # a sharded weight.
        self._errors = {
            name: DTensor.from_local(torch.zeros_like(p).unsqueeze(0), mesh, [Shard(0)], run_check=False)
            for name, p in self._thin.items()
        }
        self._next: tuple[dict[str, Tensor], dict[str, Tensor]] | None = None

    def tensors(self) -> dict[str, Tensor]:
        """The live state by name. Loading into these tensors restores the state."""
        factors = {f"factor.{name}": value for name, value in self._factors.items()}
        return {**factors, **{f"error.{name}": value for name, value in self._errors.items()}}

    @torch.no_grad()
    def exchange(self) -> None:
        """Replace every gradient by the mean over all processes. `commit` updates the state."""
        self._mean([_gradient(parameter) for parameter in self._whole])
        matrices = {n: _gradient(p) + self._errors[n].to_local()[0] for n, p in self._thin.items()}
        left = {name: matrix @ self._factors[name] for name, matrix in matrices.items()}
        self._sum(list(left.values()))
        left = {name: torch.linalg.qr(value).Q for name, value in left.items()}
        factors = {name: matrix.T @ left[name] for name, matrix in matrices.items()}
        self._mean(list(factors.values()))
        for name, parameter in self._thin.items():
            approximate = left[name] @ factors[name].T
            _gradient(parameter).copy_(approximate)
            matrices[name] -= approximate
        self._next = factors, matrices

    def commit(self) -> None:
        """Update the state to that of the last exchange; call it when its gradients are used."""
        if self._next is None:
            return
        factors, errors = self._next
        for name in self._thin:
            self._factors[name].copy_(factors[name])
            self._errors[name].to_local()[0].copy_(errors[name])
        self._next = None

    def _mean(self, tensors: list[Tensor]) -> None:
        self._sum(tensors)
        for tensor in tensors:
            tensor /= self._size

    def _sum(self, tensors: list[Tensor]) -> None:
        """Sum each over all processes, in place and in one message."""
        if not tensors:
            return
        message = torch.cat([tensor.flatten() for tensor in tensors])
        dist.all_reduce(message, group=self._group)
        parts = torch.split(message, [tensor.numel() for tensor in tensors])
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.copy_(part.view_as(tensor))


def _gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad
