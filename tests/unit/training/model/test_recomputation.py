"""Activation recomputation: which matrix products the backward pass computes again, counted."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from functorch.compile import (  # type: ignore[import-untyped]
    make_boxed_func,
    min_cut_rematerialization_partition,
)
from tests.conditions import COMPILES
from tests.unit.training.model.worlds import config_of, group_of_one
from torch import Tensor, fx
from torch._dynamo.backends.common import aot_autograd
from torch.utils._python_dispatch import TorchDispatchMode

from trainyard.training.model.loss import summed_loss
from trainyard.training.model.parallel import put_on_devices
from trainyard.training.runtime.hardware import prepare_device
from trainyard.training.runtime.world import ALONE

LAYERS, PER_BLOCK = 2, 7


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    """A group of this process."""
    with group_of_one():
        yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize(
    ("strategy", "compiled", "dtype"),
    [("fsdp", False, "bfloat16"), pytest.param("single", True, "bfloat16", marks=COMPILES)],
)
@pytest.mark.slow
def test_selective_recomputes_no_product_and_full_recomputes_those_of_the_blocks(
    monkeypatch: pytest.MonkeyPatch, strategy: str, compiled: bool, dtype: str
) -> None:
    counter = Counter()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counter.backend()))
    counts = {
        kind: products(counter, strategy=strategy, kind=kind, compiled=compiled, dtype=dtype)
        for kind in ("none", "selective", "full")
    }
    # Each matrix takes one product forward and two backward. FSDP compiles the blocks, not the output layer.
    needed = 3 * (PER_BLOCK * LAYERS + (not (compiled and strategy == "fsdp")))
    assert counts["none"] == needed
    assert counts["selective"] == needed
    # The result of the last product of a block is not needed again.
    assert needed + (PER_BLOCK - 1) * LAYERS <= counts["full"] <= needed + PER_BLOCK * LAYERS


class Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the matrix products that are computed: a result that recomputation kept is not one of them."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.products = 0

    def __torch_dispatch__(self, operation: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.products += operation is torch.ops.aten.mm.default
        return operation(*args, **kwargs or {})

    def backend(self) -> Any:
        """A compiler's backend that takes no time to compile, and computes products as inductor does.

        Products write into memory that exists (`mm.out`), which a policy that keeps `mm` does not recognise.
        """

        def compiled(graph: fx.GraphModule, _examples: Sequence[Any]) -> Callable[..., Any]:
            for node in graph.graph.nodes:
                if node.target is torch.ops.aten.mm.default:
                    node.target = self._into_memory
            graph.recompile()
            boxed: Callable[..., Any] = make_boxed_func(graph.forward)
            return boxed

        return aot_autograd(
            fw_compiler=compiled, bw_compiler=compiled, partition_fn=min_cut_rematerialization_partition
        )

    def _into_memory(self, left: Tensor, right: Tensor) -> Tensor:
        self.products += 1
        return torch.mm(left, right, out=left.new_empty(left.shape[0], right.shape[1]))


def products(counter: Counter, *, strategy: str, kind: str, compiled: bool, dtype: str) -> int:
    """Matrix products of one forward and backward pass."""
    compute = {"strategy": strategy, "compile": compiled, "activation_checkpointing": kind, "threads": 1}
    shape = {"hidden_size": 64, "intermediate_size": 96, "num_layers": LAYERS}
    config = config_of(shape, dtype=dtype, compute=compute)
    device = prepare_device(config)
    if compiled:
        torch.compiler.reset()
    parallel = put_on_devices(config, ALONE, device)
    tokens = torch.arange(2 * 33).reshape(2, 33)
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16" and parallel.autocast)

    def passes() -> None:
        with autocast:
            logits = parallel.forward(tokens[:, :-1])
        torch.autograd.backward(summed_loss(logits, tokens[:, 1:]))

    passes()  # compiles
    counter.products = 0
    with nullcontext() if compiled else counter:
        passes()
    return counter.products
