"""The smallest change that makes a training fit."""

from dataclasses import replace

from tests.unit.plan.conftest import load, workload

from trainyard.plan.advice import changes_that_fit, fits_device
from trainyard.plan.device import Device, cpu, gpu, gpu_of
from trainyard.plan.device_memory import highest_memory_peak
from trainyard.plan.instances import find_instance
from trainyard.plan.workload import Layout, Recomputation, TrainingWorkload, training_workload

NAME = "training_configuration"
EAGER = ("model.dtype=float32", "compute.compile=false")
"""Settings that take most memory, so that there is something to advise."""


def just_enough_for(work: TrainingWorkload) -> Device:
    """A GPU on which `work` fits and nothing larger does."""
    total = highest_memory_peak(work).parts.total + 2**30
    return gpu("L4", round(total / 0.95) + 10)


def test_a_smaller_batch_of_the_same_global_size_is_the_first_choice() -> None:
    work = workload(batch_size=8, accumulation=2)
    here = changes_that_fit(work, just_enough_for(replace(work, batch_size=2, accumulation=8)))[0]
    assert here.overrides == ("training.batch_size=2", "training.gradient_accumulation_steps=8")
    assert here.instance is None


def test_bfloat16_comes_when_nothing_that_keeps_the_numbers_helps() -> None:
    work = workload(bfloat16=False, compiled=False, batch_size=1, recomputation=Recomputation.FULL)
    halved = replace(work, bfloat16=True)
    assert changes_that_fit(work, just_enough_for(halved))[0].overrides == ("model.dtype=bfloat16",)


def test_another_machine_is_named_with_its_price() -> None:
    (way,) = changes_that_fit(workload(batch_size=1, accumulation=4), gpu_of(find_instance("g6.xlarge")))
    assert way.overrides == ()
    assert way.instance is not None
    assert way.instance.name == "g6e.xlarge"
    assert way.instance.usd_per_hour is not None


def test_processors_that_are_too_small_are_answered_with_a_gpu() -> None:
    work = training_workload(load(NAME), on_gpu=False)
    ways = changes_that_fit(work, cpu(cores=2, memory_bytes=2**34))
    assert all("model.device=cuda" in way.overrides for way in ways)
    assert all(way.instance for way in ways)


def test_nothing_is_suggested_when_nothing_helps() -> None:
    shape = workload().architecture.model_copy(update={"num_layers": 100_000})
    assert changes_that_fit(workload(architecture=shape), gpu("H100", 2**36)) == ()


def test_every_suggestion_fits_when_it_is_made() -> None:
    for name in ("g5.xlarge", "g6e.xlarge", "p4d.24xlarge", "p5.48xlarge"):
        device = gpu_of(find_instance(name))
        work = training_workload(load(NAME, *EAGER), on_gpu=True)
        assert not fits_device(work, device)
        for way in changes_that_fit(work, device):
            changed = training_workload(load(NAME, *EAGER, *way.overrides), on_gpu=True)
            assert fits_device(changed, gpu_of(way.instance) if way.instance else device)
            assert highest_memory_peak(changed).parts.total == way.peak_bytes
            assert changed.tokens_per_step == work.tokens_per_step


def test_activations_are_computed_again_before_the_numbers_change() -> None:
    work = workload(batch_size=1, sequence_length=16_384)
    for mode in (Recomputation.SELECTIVE, Recomputation.FULL):
        way = changes_that_fit(work, just_enough_for(replace(work, recomputation=mode)))[0]
        assert way.overrides == (f"compute.activation_checkpointing={mode}",)


def test_idle_neighbours_share_the_model_and_the_batch() -> None:
    work = workload(accumulation=4, recomputation=Recomputation.FULL)
    shared = replace(work, batch_size=2, accumulation=1, layout=Layout(shards=8, sharded=True))
    way = changes_that_fit(work, just_enough_for(shared), devices=8)[0]
    assert way.overrides == (
        "compute.strategy=fsdp",
        "training.batch_size=2",
        "training.gradient_accumulation_steps=1",
    )
    assert way.instance is None


def test_waiting_for_saves_comes_before_all_else_where_their_copy_is_too_much() -> None:
    behind = workload(on_gpu=False, compiled=False, staged=True)
    total = highest_memory_peak(replace(behind, staged=False)).parts.total
    here = cpu(cores=2, memory_bytes=round((total + 2**30) / 0.95) + 10)
    assert not fits_device(behind, here)
    assert changes_that_fit(behind, here)[0].overrides == ("checkpointing.mode=sync",)


def test_a_copy_that_fits_is_kept_and_a_gpus_share_of_main_memory_counts() -> None:
    behind = workload(staged=True, batch_size=1, accumulation=4)
    large, small = (gpu("H100", 80 * 2**30, host_bytes=size * 2**30) for size in (64, 8))
    assert fits_device(behind, large)
    assert not fits_device(behind, small)
    assert fits_device(replace(behind, staged=False), small)
    assert changes_that_fit(behind, small)[0].overrides == ("checkpointing.mode=sync",)
