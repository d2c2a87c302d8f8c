"""The placement of a model on devices among up to 32 processes, and its initial weights, each process's own.

Only one process exists, in torch's fake process group, which sends nothing, so values that are summed up mean
nothing. Placements, shapes and the order of calls are those of a real run.
"""

import math
from collections.abc import Iterator
from functools import partial
from itertools import cycle
from typing import Any, cast

import pytest
import torch
from tests.unit.training.model.worlds import config_of, fake_world, group_of_one
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from trainyard.config.schema import ArchitectureConfig, Config
from trainyard.training.model import model as model_module
from trainyard.training.model import parallel, shard_assignment
from trainyard.training.model.loss import summed_loss
from trainyard.training.model.model import Llama, build_model
from trainyard.training.model.optimizer import build_optimizer
from trainyard.training.model.parallel import Parallel, clip_gradients, cut_over_group, put_on_devices
from trainyard.training.model.shard_assignment import draw_normal, own_part, own_slices
from trainyard.training.runtime.world import ALONE, World


@pytest.fixture
def group() -> Iterator[None]:
    """A group of this process."""
    with group_of_one():
        yield


@pytest.mark.parametrize(
    ("dtype", "reduced", "computed", "summed"),
    [
        ("float32", "bfloat16", None, None),
        ("bfloat16", "float32", torch.bfloat16, torch.float32),
        ("bfloat16", "bfloat16", torch.bfloat16, torch.bfloat16),
    ],
)
@pytest.mark.usefixtures("group")
def test_shards_are_cast_and_summed_up_as_configured(
    monkeypatch: pytest.MonkeyPatch, dtype: str, reduced: str, computed: Any, summed: Any
) -> None:
    policies: list[MixedPrecisionPolicy] = []
    original = fully_shard

    def record_module(module: Any, **settings: Any) -> Any:
        policies.append(settings["mp_policy"])
        return original(module, **settings)

    monkeypatch.setattr(parallel, "fully_shard", record_module)
    compute = {"strategy": "fsdp", "reduce_dtype": reduced}
    config = config_of({"hidden_size": 16, "num_layers": 1}, dtype=dtype, compute=compute)
    model = parallel.put_on_devices(config, ALONE, torch.device("cpu"))
    assert {(policy.param_dtype, policy.reduce_dtype) for policy in policies} == {(computed, summed)}
    logits = model.forward(torch.zeros(1, 4, dtype=torch.int64))
    assert logits.dtype == (computed or torch.float32)
    torch.autograd.backward(logits.float().sum())
    assert {p.grad.dtype for p in model.model.parameters() if p.grad is not None} == {torch.float32}


@pytest.mark.slow
def test_a_compiled_model_is_split_at_the_buckets_of_ddp(monkeypatch: pytest.MonkeyPatch) -> None:
    """A single graph would return all gradients at its end, and no bucket would be exchanged earlier."""
    graphs: list[Any] = []

    def count_call(graph: Any, _examples: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=count_call))
    # The parameters of the other process are verified over the network, which is missing here.
    verified = "torch.nn.parallel.distributed._verify_param_shape_across_processes"
    monkeypatch.setattr(verified, lambda *_: None)
    torch.compiler.reset()
    compute = {"strategy": "ddp", "compile": True}
    config = config_of({"hidden_size": 1024, "num_layers": 4}, compute=compute)
    with fake_world(0, 2) as world:
        model = parallel.put_on_devices(config, world, torch.device("cpu"))
        model.forward(torch.zeros(1, 4, dtype=torch.int64))
    torch.compiler.reset()
    size = 4 * sum(parameter.numel() for parameter in model.model.parameters())
    assert len(graphs) >= size // (25 << 20) > 1


CUT_SHAPE = {"hidden_size": 16, "intermediate_size": 24, "num_layers": 1, "vocab_size": 258}


@pytest.fixture
def four() -> Iterator[World]:
    """This process is rank 3 of four; the others do not exist."""
    with fake_world(3, 4) as world:
        yield world


@pytest.fixture(params=[False, True], ids=["untied", "tied"])
def cut(request: pytest.FixtureRequest, four: World) -> Parallel:
    """The model in 2 shards × 2 cuts."""
    compute = {"strategy": "fsdp", "tensor_parallel": 2}
    config = config_of({**CUT_SHAPE, "tie_word_embeddings": request.param}, compute=compute)
    return put_on_devices(config, four, torch.device("cpu"))


def test_a_block_is_given_a_tensor_that_has_arrived(four: World) -> None:
    # In torch 2.13 a compiled block computes wrong gradients for a pending one (AsyncCollectiveTensor).
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("shard", "tensor"))
    model = build_model(config_of(CUT_SHAPE).model.architecture, seed=42)
    cut_over_group(model, mesh["tensor"])
    given = model.model.embed_tokens(torch.zeros(1, 4, dtype=torch.int64))
    assert type(given) is torch.Tensor
    assert given.shape == (1, 4, 16)


def test_the_norm_is_over_every_mesh_and_all_gradients_shrink_alike(cut: Parallel) -> None:
    for parameter in cut.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    assert len({p.device_mesh for p in cut.model.parameters() if isinstance(p, DTensor)}) == 2
    total = clip_gradients(cut.model, 1.0).item()
    # The fake group sends nothing: the sum is over the gradients that this process holds.
    held = sum(own_part(parameter).numel() for parameter in cut.model.parameters())
    assert total == pytest.approx(held**0.5, rel=1e-5)
    for parameter in cut.model.parameters():
        assert parameter.grad is not None
        assert own_part(parameter.grad).flatten()[0].item() == pytest.approx(1 / total, rel=1e-4)


DRAWN_SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 72,
    "num_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 264,
}
DRAWN_MESHES: list[dict[str, Any]] = [{"strategy": "fsdp"}, {"strategy": "hsdp", "replicas": 2}]


@pytest.fixture
def eight(request: pytest.FixtureRequest) -> Iterator[World]:
    with fake_world(request.param, 8) as world:
        yield world


def config(**compute: Any) -> Config:
    return config_of(DRAWN_SHAPE, compute=compute)


def complete_draw(architecture: ArchitectureConfig, seed: int = 42) -> dict[str, Tensor]:
    """The weights by one `normal_` for each matrix, in the order of the parameters."""
    generator, width = torch.Generator().manual_seed(seed), architecture.initializer_range
    found = {}
    for name, parameter in Llama(architecture).named_parameters():
        found[name] = torch.ones(parameter.shape)
        if parameter.ndim > 1:
            small = name.endswith(("o_proj.weight", "down_proj.weight"))
            deviation = width / math.sqrt(2 * architecture.num_layers) if small else width
            found[name].normal_(0.0, deviation, generator=generator)
    return found


@pytest.mark.parametrize("at_once", [1, 1 << 10, 1 << 22])
@pytest.mark.parametrize("eight", [0, 5], indirect=True)
@pytest.mark.parametrize("mesh", DRAWN_MESHES, ids=lambda mesh: "-".join(map(str, mesh.values())))
def test_every_shard_has_the_values_of_a_complete_draw(
    mesh: dict[str, Any], eight: World, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_assignment, "_DRAWN_AT_ONCE", at_once)
    wanted = config(**mesh)
    expected = complete_draw(wanted.model.architecture)
    for name, parameter in put_on_devices(wanted, eight, torch.device("cpu")).model.named_parameters():
        assert isinstance(parameter, DTensor)
        assert torch.equal(own_part(parameter), expected[name][own_slices(parameter)]), name


@pytest.mark.parametrize("at_once", [1, 1 << 22])
def test_a_model_that_is_not_sharded_has_them_too(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_assignment, "_DRAWN_AT_ONCE", at_once)
    architecture = config(strategy="ddp").model.architecture
    for seed in (42, 7):
        expected = complete_draw(architecture, seed)
        for name, parameter in build_model(architecture, seed=seed).named_parameters():
            assert torch.equal(parameter, expected[name]), name


def test_the_generator_continues_as_after_a_complete_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_assignment, "_DRAWN_AT_ONCE", 1)
    for shape in ((1, 3), (5, 3), (16, 1), (33, 1), (17, 16), (70, 7), (64, 4)):
        ours, plain = (torch.Generator().manual_seed(9) for _ in range(2))
        draw_normal(drawn := torch.empty(shape), 0.5, generator=ours)
        assert torch.equal(drawn, torch.empty(shape).normal_(0, 0.5, generator=plain)), shape
        assert torch.equal(ours.get_state(), plain.get_state()), shape


@pytest.mark.parametrize("eight", [3], indirect=True)
def test_nothing_is_drawn_where_a_checkpoint_is_loaded(eight: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("drew weights that a checkpoint replaces")

    monkeypatch.setattr(model_module, "draw_normal", refuse)
    for mesh in DRAWN_MESHES:
        put_on_devices(config(**mesh), eight, torch.device("cpu"), draw=False)
    for strategy in ("single", "ddp"):
        put_on_devices(config(strategy=strategy), ALONE, torch.device("cpu"), draw=False)


SIZE, RANK = 32, 21
SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
}
CUT_ALONG = {"o_proj": 1, "down_proj": 1}
"""The dimension in which tensor parallelism cuts a matrix; 0 for the others."""
MESHES = [
    {"strategy": "fsdp" if replicas == 1 else "hsdp", "replicas": replicas, "tensor_parallel": tensor}
    for replicas, tensor in ((1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (32, 1))
]
"""The processes that are neither replicas nor cuts are shards."""


@pytest.fixture
def thirty_two() -> Iterator[None]:
    with fake_world(RANK, SIZE):
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("thirty_two")
@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module .* returned a view tensor")  # nothing writes to it
@pytest.mark.parametrize(
    ("mesh", "dtype"), [*zip(MESHES, cycle(["float32", "bfloat16"]), strict=False)], ids=str
)
def test_a_step_of_two_passes_leaves_every_shard_in_its_place(mesh: dict[str, Any], dtype: str) -> None:
    wanted = config_of(SHAPE, dtype=dtype, compute=mesh, training={"gradient_accumulation_steps": 2})
    parallel = put_on_devices(wanted, World(RANK, SIZE, RANK % 8, None), torch.device("cpu"))
    tensor, replicas = mesh["tensor_parallel"], mesh["replicas"]
    assert (parallel.share.size, parallel.share.rank) == (SIZE // tensor, RANK // tensor)
    optimizer = build_optimizer(parallel.model, wanted.training)
    plain = dict(build_model(wanted.model.architecture, seed=42).named_parameters())
    for name, parameter in parallel.model.named_parameters():
        require_place(name, parameter, shards=SIZE // tensor // replicas, tensor=tensor, replicas=replicas)
        assert isinstance(parameter, DTensor)
        assert torch.equal(own_part(parameter), plain[name][own_slices(parameter)])

    before = [(tuple(p.shape), p.placements) for p in parallel.model.parameters() if isinstance(p, DTensor)]
    tokens = torch.arange(2 * 17).reshape(2, 17)
    for last in (False, True):
        with parallel.accumulate(last=last):
            loss = summed_loss(parallel.forward(tokens[:, :-1]), tokens[:, 1:])
            loss.backward()  # type: ignore[no-untyped-call]
        gradients = [p.grad for p in parallel.model.parameters()]
        # Replicas sum gradients after the last pass; without replicas each pass leaves sharded gradients.
        assert all(g is None for g in gradients) == (replicas > 1 and not last)
        require_no_whole_gradient(parallel.model)
    clip_gradients(parallel.model, 1.0)
    optimizer.step()
    after = [(tuple(p.shape), p.placements) for p in parallel.model.parameters() if isinstance(p, DTensor)]
    assert after == before
    for parameter in parallel.model.parameters():
        assert isinstance(parameter, DTensor)
        assert isinstance(parameter.grad, DTensor)
        held = (parameter.grad, optimizer.state[parameter]["exp_avg"])
        assert all(isinstance(its, DTensor) and its.placements == parameter.placements for its in held)
        assert {its.dtype for its in held} == {torch.float32}


def require_place(name: str, parameter: torch.Tensor, *, shards: int, tensor: int, replicas: int) -> None:
    assert isinstance(parameter, DTensor)
    cut = tensor > 1 and parameter.ndim == 2
    sizes = (*((replicas,) if replicas > 1 else ()), shards, *((tensor,) if cut else ()))
    assert parameter.device_mesh.shape == sizes
    along = next((at for part, at in CUT_ALONG.items() if part in name), 0)
    # Where FSDP and the cut both divide rows, FSDP shards each cut, and marks that by a stride.
    rows = _StridedShard(0, split_factor=tensor) if cut and along == 0 else Shard(0)
    wanted = (*((Replicate(),) if replicas > 1 else ()), rows, *((Shard(along),) if cut else ()))
    assert parameter.placements == wanted
    share = shards * (tensor if cut else 1)
    assert own_part(parameter).numel() == pytest.approx(parameter.numel() / share, rel=0.51)


def require_no_whole_gradient(model: torch.nn.Module) -> None:
    """Fail where FSDP holds a complete gradient beside a parameter, as after a pass without a reduction."""
    groups = [
        group
        for module in model.modules()
        if hasattr(module, "_get_fsdp_state")
        for group in cast(Any, module)._get_fsdp_state()._fsdp_param_groups
    ]
    assert groups
    assert all(p.unsharded_accumulated_grad is None for group in groups for p in group.fsdp_params)
