"""What a step keeps and where: the planned memory of FSDP, recomputation, and parameters in main memory.

Torch's fake process group sends nothing, but one process shards, gathers and reduces as among 2 or 8. Unlike
gloo's threads it releases all memory where torch's profiler sees it, so the figures are exact. The device of
an offloaded model is `meta`, which every machine has: its tensors have shapes and no values, and an
operation over tensors of two devices fails as on a GPU.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from types import ModuleType
from typing import Any

import pytest
import torch
from functorch.compile import (  # type: ignore[import-untyped]
    make_boxed_func,
    min_cut_rematerialization_partition,
)
from tests.conditions import COMPILES
from tests.unit.training.model.worlds import config_of, fake_world, group_of_one
from torch import Tensor, fx
from torch._dynamo.backends.common import aot_autograd
from torch.utils._python_dispatch import TorchDispatchMode

from trainyard.config.schema import Config
from trainyard.plan.device_memory import highest_memory_peak, memory_peaks_of
from trainyard.plan.workload import training_workload
from trainyard.training.model.loss import summed_loss
from trainyard.training.model.optimizer import build_optimizer
from trainyard.training.model.parallel import Parallel, put_on_devices
from trainyard.training.model.shard_assignment import own_part
from trainyard.training.runtime.hardware import prepare_device
from trainyard.training.runtime.world import ALONE, World

OPTIMIZER = "Optimizer.step#AdamW.step"


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "dtype", "accumulation"), [(2, "float32", 3), (8, "bfloat16", 3)])
def test_accumulation_over_shards_takes_planned_memory(processes: int, dtype: str, accumulation: int) -> None:
    shape = {"hidden_size": 256, "intermediate_size": 704, "num_layers": 8, "max_position_embeddings": 64}
    config = config_of(
        shape,
        dtype=dtype,
        data={"sequence_length": 64},
        training={"batch_size": 1, "gradient_accumulation_steps": accumulation},
        compute={"strategy": "fsdp", "threads": 1},
    )
    work = training_workload(config, on_gpu=False, processes=processes)
    with fake_world(0, processes) as world:
        peak, at_optimizer = measure(config, world)
    planned = {moment.name: moment.parts.total for moment in memory_peaks_of(work)}
    assert highest_memory_peak(work).parts.total == pytest.approx(peak, rel=0.05)
    assert planned["optimizer step"] == pytest.approx(at_optimizer, rel=0.05)


def measure(config: Config, world: World) -> tuple[int, int]:
    """Return the peak bytes of tensors in two steps, and the bytes when the second optimizer step starts."""
    with torch.autograd.profiler.profile(profile_memory=True) as profile:
        parallel = put_on_devices(config, world, torch.device("cpu"))
        optimizer = build_optimizer(parallel.model, config.training)
        tokens = torch.zeros(config.training.batch_size, config.data.sequence_length + 1, dtype=torch.int64)
        passes = config.training.gradient_accumulation_steps
        for _ in range(2):
            for number in range(1, passes + 1):
                with parallel.accumulate(last=number == passes):
                    loss = summed_loss(parallel.forward(tokens[:, :-1]), tokens[:, 1:])
                    loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    return read_timeline(profile)


def read_timeline(profile: torch.autograd.profiler.profile) -> tuple[int, int]:
    live, peak, at_optimizer = 0, 0, 0
    events: list[Any] = profile.kineto_results.events()  # type: ignore[union-attr]
    rows = [(e.start_ns(), e.nbytes() if e.name() == "[memory]" else 0, e.name()) for e in events]
    for _, change, name in sorted(rows):
        live += change
        peak = max(peak, live)
        at_optimizer = live if name == OPTIMIZER else at_optimizer
    return peak, at_optimizer


LAYERS, PER_BLOCK = 2, 7


@pytest.fixture
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
@pytest.mark.usefixtures("group")
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


class Queue:
    """A stream or an event of a device that computes nothing: all of it is done already."""

    def __init__(self, *_args: Any, **_settings: Any) -> None:
        pass

    def record(self, *_args: Any) -> "Queue":
        return self

    record_event = record

    def wait_event(self, _event: Any) -> None:
        pass

    wait_stream = wait_event


class Meta(ModuleType):
    """The interface that torch requires of a module such as `torch.cuda`."""

    Stream = Event = Queue

    @staticmethod
    def current_device() -> int:
        return 0

    @staticmethod
    def device_count() -> int:
        return 2

    @staticmethod
    def is_initialized() -> bool:
        return True

    @staticmethod
    def current_stream(*_args: Any) -> Queue:
        return Queue()

    @staticmethod
    def stream(_stream: Queue) -> AbstractContextManager[None]:
        return nullcontext()


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Rank 1 of two processes with a device each."""
    monkeypatch.setattr(torch, "meta", Meta("torch.meta"), raising=False)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)  # needs a GPU
    with fake_world(1, 2) as world:
        yield world


@pytest.fixture(params=["none", "full"])
def offloaded_model(request: pytest.FixtureRequest, two: World) -> Parallel:
    compute = {"strategy": "fsdp", "cpu_offload": True, "activation_checkpointing": request.param}
    config = config_of({"hidden_size": 16, "intermediate_size": 24, "num_layers": 2}, compute=compute)
    return put_on_devices(config, two, torch.device("meta"))


def test_parameters_are_in_main_memory_and_a_pass_has_all_on_the_device(offloaded_model: Parallel) -> None:
    parameters = [own_part(parameter) for parameter in offloaded_model.model.parameters()]
    assert {parameter.device.type for parameter in parameters} == {"cpu"}
    assert {table.device.type for table in offloaded_model.model.buffers()} == {"meta"}
    assert all(torch.isfinite(parameter).all() for parameter in parameters)
    logits = offloaded_model.forward(torch.zeros(2, 8, dtype=torch.int64, device="meta"))
    assert (logits.device.type, logits.shape) == ("meta", (2, 8, 256))
