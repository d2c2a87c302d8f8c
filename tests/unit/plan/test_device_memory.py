"""The memory of a step, compared with that of real steps and with rules that follow from its layout."""

import importlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.plan.conftest import load, workload

from trainyard.config.parameters import count_parameters
from trainyard.config.schema import ArchitectureConfig, Config
from trainyard.errors import ConfigError
from trainyard.plan import activations, device_memory
from trainyard.plan.device_memory import (
    MemoryParts,
    highest_memory_peak,
    host_bytes,
    main_memory_need,
    memory_peaks_of,
)
from trainyard.plan.minimum_memory import MEGATRON, SHARDED, least_bytes
from trainyard.plan.parallel_degrees import Degrees
from trainyard.plan.workload import Layout, Recomputation, TrainingWorkload, training_workload
from trainyard.training.model import attention, loss

ROOT = Path(__file__).resolve().parents[3]
# Real training steps of small models, in bytes: benchmarks/memory_fit.py --device cpu --json --shape NAME ...
MEASURED = {
    result["shape"]: result["measured"]
    for result in json.loads((ROOT / "tests" / "fixtures" / "measured_memory.json").read_text())
}


def test_the_plan_is_within_a_tenth_of_a_real_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    benchmark = importlib.import_module("memory_fit")
    assert len(MEASURED) == 2
    for shape, measured in MEASURED.items():
        planned = benchmark.planned(benchmark.SHAPES[shape], "cpu")
        for part in ("peak", "resident", "before_backward", "at_optimizer"):
            assert measured[part] > 1_000_000
            assert planned[part] == pytest.approx(measured[part], rel=0.10), (shape, part)


def at(work: TrainingWorkload, name: str) -> MemoryParts:
    return next(moment.parts for moment in memory_peaks_of(work) if moment.name == name)


def test_accumulated_passes_start_with_the_gradients_of_the_one_before() -> None:
    assert at(workload(accumulation=1), "loss").gradients == 0
    assert at(workload(accumulation=2), "loss").gradients == 4 * 1_100_048_384
    buckets = workload(layout=Layout(replicas=2, gradient_buckets=True))
    assert at(buckets, "loss").gradients == 4 * 1_100_048_384


def test_the_rows_of_logits_are_those_that_the_loss_takes() -> None:
    assert device_memory.LOSS_ROWS_BYTES == loss.ROWS_BYTES
    for on_gpu, limit in enumerate(loss.ROWS_BYTES):
        work = workload(on_gpu=bool(on_gpu))
        rows = device_memory.rows_of_logits(work)
        assert limit < rows <= 2 * limit


def test_each_stronger_recomputation_keeps_less() -> None:
    kept = [activations.block_bytes(workload(recomputation=mode)) for mode in Recomputation]
    assert kept == sorted(kept, reverse=True)
    assert len(set(kept)) == 3
    assert kept[-1] == 4 * 2048
    peaks = [highest_memory_peak(workload(recomputation=mode)).parts.total for mode in Recomputation]
    assert peaks == sorted(peaks, reverse=True)


def test_shards_divide_the_state_and_gather_two_blocks_and_replicas_change_nothing() -> None:
    whole, eighth = workload(), workload(layout=Layout(shards=8, sharded=True))
    optimizer = at(eighth, "optimizer step")
    assert optimizer.moments == at(whole, "optimizer step").moments // 8
    assert optimizer.gradients == at(whole, "optimizer step").gradients // 8
    block = count_parameters(whole.architecture).block
    last = "backward pass of the last attention"
    assert at(eighth, last).workspace - at(whole, last).workspace > 2 * 2 * block
    assert at(eighth, "loss").copies == 0
    assert highest_memory_peak(eighth).parts.total < highest_memory_peak(whole).parts.total
    assert memory_peaks_of(workload(layout=Layout(replicas=4))) == memory_peaks_of(whole)


def test_grouped_float32_attention_on_a_gpu_and_short_compiled_on_processors_keep_every_score() -> None:
    grouped = workload(bfloat16=False)
    scores = 4 * 32 * 2048
    assert activations.scores_are_kept(grouped)
    assert activations.attention_bytes(grouped) > scores
    assert not activations.scores_are_kept(workload())
    assert not activations.scores_are_kept(replace(grouped, on_gpu=False))
    shape = grouped.architecture.model_copy(update={"num_key_value_heads": 32})
    assert not activations.scores_are_kept(replace(grouped, architecture=shape))
    short = workload(on_gpu=False, sequence_length=activations.LONGEST_WRITTEN_OUT)
    assert attention.LONGEST_WRITTEN_OUT == activations.LONGEST_WRITTEN_OUT
    assert activations.scores_are_kept(short)
    assert not activations.scores_are_kept(replace(short, compiled=False))
    assert not activations.scores_are_kept(replace(short, sequence_length=513))


def test_autocast_copies_the_weights_and_halves_the_products() -> None:
    half, full = workload(), workload(bfloat16=False, on_gpu=False)
    assert at(half, "loss").copies == 2 * count_parameters(half.architecture).multiplied
    assert at(full, "loss").copies == 0
    assert activations.block_bytes(half) < activations.block_bytes(full)


def test_the_layout_is_read_from_the_configuration_and_the_processes() -> None:
    def layout(*overrides: str) -> Layout:
        return training_workload(load("training_configuration", *overrides), on_gpu=True, processes=8).layout

    assert layout() == Layout()
    assert layout("compute.strategy=ddp") == Layout(replicas=8, gradient_buckets=True)
    fsdp = layout("compute.strategy=fsdp", "compute.cpu_offload=true")
    assert fsdp == Layout(shards=8, sharded=True, offloaded=True)
    assert layout("compute.strategy=hsdp", "compute.replicas=2") == Layout(4, 2, sharded=True)
    with pytest.raises(ConfigError, match=r"compute.replicas: 3 does not divide the 8 processes"):
        layout("compute.strategy=hsdp", "compute.replicas=3")


def test_an_offloaded_model_leaves_the_device_its_activations() -> None:
    kept = workload(layout=Layout(shards=8, sharded=True))
    offloaded = replace(kept, layout=replace(kept.layout, offloaded=True))
    parts = at(offloaded, "optimizer step")
    assert (parts.moments, parts.gradients) == (0, 0)
    assert at(offloaded, "loss").activations == at(kept, "loss").activations


def test_a_sharded_model_in_bfloat16_has_a_residual_stream_of_it() -> None:
    full = workload(recomputation=Recomputation.FULL)
    sharded = replace(full, layout=Layout(sharded=True))
    assert 2 * activations.block_bytes(sharded) == activations.block_bytes(full)
    assert at(sharded, "loss").copies == 0


def test_a_cut_model_has_its_share_of_heads_and_of_the_inner_width() -> None:
    sharded = workload(layout=Layout(shards=2, sharded=True))
    cut = workload(layout=Layout(shards=2, tensor=4, sharded=True))
    assert at(cut, "optimizer step").moments == at(sharded, "optimizer step").moments // 4
    widths, whole = activations.Widths.of(cut), activations.Widths.of(sharded)
    assert widths.residual == whole.residual
    assert (4 * widths.query, 4 * widths.inner, 4 * widths.heads) == (whole.query, whole.inner, whole.heads)
    assert activations.block_bytes(cut) < activations.block_bytes(sharded)
    assert cut.tokens_per_step == sharded.tokens_per_step
    assert cut.layout.devices == 8


def test_compressed_gradients_leave_an_error_for_the_next_step() -> None:
    settings = ("compute.strategy=ddp", "compute.gradient_compression=powersgd")
    plain = training_workload(load("smoke", settings[0]), on_gpu=False, processes=2)
    compressed = training_workload(load("smoke", *settings), on_gpu=False, processes=2)
    assert compressed.layout == Layout(replicas=2, compressed=True)
    weights = 4 * count_parameters(plain.architecture).total
    ours, theirs = at(compressed, "optimizer step"), at(plain, "optimizer step")
    assert ours.moments - theirs.moments == weights
    assert training_workload(load("smoke", *settings), on_gpu=False).layout == Layout()


def test_documents_that_are_kept_apart_cost_a_mask_a_block_and_keys_for_every_head() -> None:
    together = workload(compiled=False, on_gpu=False)
    apart = replace(together, separate=True)
    mask, repeated = 2 * 2048, 2 * 2 * (2048 - 4 * 64)
    assert activations.block_bytes(apart) - activations.block_bytes(together) == mask + repeated
    turns = 2 * 4 * 64
    assert activations.shared_bytes(apart) == turns
    kept = at(apart, "loss").activations - at(together, "loss").activations
    assert kept == apart.tokens * (22 * (mask + repeated) + turns)
    again = replace(apart, recomputation=Recomputation.FULL)
    assert activations.shared_bytes(again) == turns + 2048, "which token sees which, as bytes"
    assert activations.block_bytes(again) == 4 * 2048


def test_the_compiler_makes_one_mask_for_all_blocks_and_none_where_scores_are_kept() -> None:
    apart = workload(on_gpu=False, separate=True)
    assert activations.shared_bytes(apart) == 2 * 2048
    short = replace(apart, sequence_length=512)
    assert activations.shared_bytes(short) == 0
    assert activations.block_bytes(short) == activations.block_bytes(replace(short, separate=False))
    assert not activations.scores_are_kept(workload(bfloat16=False, separate=True)), "no grouped heads"


def test_the_copy_that_saving_makes_is_in_main_memory() -> None:
    def work(*overrides: str) -> TrainingWorkload:
        config = load("smoke", "compute.strategy=ddp", *overrides)
        return training_workload(config, on_gpu=False, processes=2)

    waits, behind = work(), work("checkpointing.mode=async")
    total = 4 * count_parameters(waits.architecture).total
    assert {moment.parts.staging for moment in memory_peaks_of(waits)} == {0}
    assert {moment.parts.staging for moment in memory_peaks_of(behind)} == {3 * total // 2}
    rounded = work("checkpointing.mode=async", "compute.gradient_compression=powersgd")
    assert at(rounded, "loss").staging == 3 * total // 2 + total, "what each process left out is its own"
    assert host_bytes(behind) == 0, "beside GPUs it is not the device's"


def test_on_a_cpu_every_tensor_of_the_peak_counts() -> None:
    for changes in ((), ("training.batch_size=64",), ("training.gradient_accumulation_steps=4",)):
        config = load("smoke", *changes)
        work = training_workload(config, on_gpu=False)
        assert main_memory_need(config, gpus=0) == highest_memory_peak(work).parts.total


def test_what_ships_fits_the_smallest_machine_that_anybody_trains_on() -> None:
    assert main_memory_need(load("smoke"), gpus=0) < 10**9


@pytest.mark.parametrize(
    ("changes", "gpus", "copies"),
    [
        ((), 1, 0),
        (("checkpointing.mode=async",), 1, 12),
        (("checkpointing.mode=async", "compute.strategy=fsdp"), 8, 12),
        (("compute.strategy=fsdp", "compute.cpu_offload=true"), 8, 16),
        (("compute.strategy=fsdp", "compute.cpu_offload=true", "checkpointing.mode=async"), 4, 28),
        (("compute.strategy=ddp", "checkpointing.mode=async"), 8, 12),
    ],
)
def test_beside_gpus_the_copies_and_what_is_offloaded_count(
    changes: tuple[str, ...], gpus: int, copies: int
) -> None:
    """Bytes per parameter: 12 of a copy (weight, two moments), 16 of an offloaded state."""
    config = load("smoke", *changes)
    total = count_parameters(config.model.architecture).total
    assert main_memory_need(config, gpus=gpus) == pytest.approx(copies * total, rel=1e-4)


def test_what_this_machine_alone_cannot_share_out_is_no_error() -> None:
    """Several machines train it: the fewest processes that can share it count."""
    config = load("smoke", "compute.strategy=hsdp", "compute.replicas=2", "compute.tensor_parallel=2")
    assert all(main_memory_need(config, gpus=gpus) >= 0 for gpus in (0, 1, 3))


def config() -> Config:
    shape = {"num_layers": 8, "hidden_size": 256, "intermediate_size": 1024, "vocab_size": 1000}
    model = {"name": "x", "architecture": shape}
    return Config.model_validate({"model": model, "training": {"max_steps": 1}})


def degrees(*, world: int = 8, tensor: int = 1, pipeline: int = 1, context: int = 1) -> Degrees:
    return Degrees(world, 8, tensor, pipeline, context, 1, 1, None, 1)


@pytest.mark.parametrize("state", [MEGATRON, SHARDED])
def test_every_degree_takes_from_what_a_gpu_holds(state: tuple[int, int]) -> None:
    whole = least_bytes(config(), degrees(world=1), state)
    for other in (degrees(), degrees(tensor=2), degrees(pipeline=2, world=2), degrees(context=2, world=2)):
        assert 0 < least_bytes(config(), other, state) < whole


def test_one_gpu_holds_all_of_it() -> None:
    made = config()
    parameters = count_parameters(
        ArchitectureConfig(**made.model.architecture.model_dump(exclude={"rope_scaling"}))
    )
    inputs = 8 * made.data.sequence_length * 256 * 2
    held = parameters.total - parameters.norms
    assert least_bytes(made, degrees(world=1), MEGATRON) == held * 18 + inputs
