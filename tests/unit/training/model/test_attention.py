from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from trainyard.training.model.attention import causal_attention, unseen_keys, written_out_attention


def heads(*, queries: int, keys: int, length: int = 7, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = [(2, count, length, 8) for count in (queries, keys, keys)]
    return [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]


@pytest.mark.parametrize(("queries", "keys"), [(4, 4), (4, 2), (6, 1)])
def test_written_out_it_is_the_fused_kernel_forward_and_backward(queries: int, keys: int) -> None:
    results = []
    for attention in (causal_attention, written_out_attention):
        parts = heads(queries=queries, keys=keys)
        mixed = attention(*parts)
        mixed.square().sum().backward()  # type: ignore[no-untyped-call]
        results.append([mixed, *(part.grad for part in parts)])
    for fused, written in zip(*results, strict=True):
        torch.testing.assert_close(fused, written)


@pytest.mark.parametrize("attention", [causal_attention, written_out_attention])
def test_a_query_sees_the_keys_that_it_may(attention: Callable[..., Tensor]) -> None:
    document = torch.tensor([0, 0, 0, 0, 1, 1, 1])
    visible = (document[:, None] == document).tril().expand(2, 1, 7, 7)
    parts = heads(queries=4, keys=2)
    apart = [attention(*(part[:, :, at] for part in parts)) for at in (slice(4), slice(4, 7))]
    torch.testing.assert_close(attention(*parts, visible), torch.cat(apart, dim=2))


def test_a_table_to_add_hides_the_same_keys_to_the_bit() -> None:
    q, k, v = heads(queries=4, keys=2, dtype=torch.float32)
    table = unseen_keys(9)[:7, :7]
    assert torch.equal(written_out_attention(q, k, v, table), written_out_attention(q, k, v))
    torch.testing.assert_close(causal_attention(q, k, v, table), causal_attention(q, k, v))


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
    graphs: list[set[str]] = []

    def record_graph(graph: torch.fx.GraphModule, _inputs: list[Tensor]) -> torch.fx.GraphModule:
        graphs.append({getattr(node.target, "__name__", str(node.target)) for node in graph.graph.nodes})
        return graph

    for length in (512, 513):
        compiled = torch.compile(causal_attention, backend=record_graph, dynamic=False)
        compiled(*heads(queries=1, keys=1, length=length, dtype=torch.float32))
    short, long = graphs
    assert "softmax" in short
    assert "scaled_dot_product_attention" not in short
    assert "scaled_dot_product_attention" in long
