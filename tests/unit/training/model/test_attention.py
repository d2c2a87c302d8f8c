"""Attention written out for the compiler of a CPU: the values of the fused kernel."""

import pytest
import torch
from torch import Tensor

from trainyard.training.model.attention import (
    causal_attention,
    is_written_out,
    unseen_keys,
    written_out_attention,
)


def heads(*, queries: int, keys: int, length: int = 7, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = [(2, count, length, 8) for count in (queries, keys, keys)]
    return [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]


@pytest.mark.parametrize(("queries", "keys"), [(4, 4), (4, 2), (6, 1)])
def test_written_out_it_is_the_fused_kernel_forward_and_backward(queries: int, keys: int) -> None:
    results = []
    for unseen in (None, unseen_keys(9)[:7, :7].double()):
        q, k, v = parts = heads(queries=queries, keys=keys)
        mixed = causal_attention(q, k, v, unseen)
        mixed.square().sum().backward()  # type: ignore[no-untyped-call]
        results.append([mixed, *(part.grad for part in parts)])
    for fused, written in zip(*results, strict=True):
        torch.testing.assert_close(fused, written)


def test_of_the_scores_only_the_shares_are_kept_in_the_precision_of_the_values() -> None:
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    q, k, v = heads(queries=4, keys=4, length=32, dtype=torch.bfloat16)
    with torch.autograd.graph.saved_tensors_hooks(keep, keep), torch.autocast("cpu", torch.bfloat16):
        written_out_attention(q, k, v, unseen_keys(32))
    of_pairs = [tensor for tensor in kept if tensor.numel() == 2 * 4 * 32 * 32]
    assert of_pairs
    assert {tensor.dtype for tensor in of_pairs} == {torch.bfloat16}
    assert len({tensor.untyped_storage().data_ptr() for tensor in of_pairs}) == 1


def test_it_is_written_out_for_the_compiler_of_the_cpu_while_the_scores_are_small() -> None:
    def chosen(x: Tensor) -> Tensor:
        return x + 1 if is_written_out(x.device, x.shape[0]) else x - 1

    assert chosen(torch.zeros(512))[0] == -1
    compiled = torch.compile(chosen, backend="eager", dynamic=False)
    assert [compiled(torch.zeros(length))[0].item() for length in (512, 513)] == [1, -1]
