"""The smallest change that makes it fit."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from trainyard.config.schema import Config
from trainyard.plan.advice import changes_that_fit, fits, overrides_between
from trainyard.plan.device import Device, cpu, gpu, gpu_of
from trainyard.plan.instances import find_instance
from trainyard.plan.memory import highest_moment
from trainyard.plan.workload import Workload, workload_of

Build = Callable[..., Workload]
Load = Callable[..., Config]
NAME = "training_configuration"


def just_enough_for(work: Workload) -> Device:
    """A GPU on which `work` fits and nothing larger does."""
    total = highest_moment(work).parts.total + 2**30
    return gpu("L4", round(total / 0.95) + 10)


def test_a_smaller_batch_of_the_same_global_size_is_the_first_choice(workload: Build) -> None:
    work = workload(batch_size=8, accumulation=2)
    here = changes_that_fit(work, just_enough_for(replace(work, batch_size=2, accumulation=8)))[0]
    assert here.overrides == ("training.batch_size=2", "training.gradient_accumulation_steps=8")
    assert here.instance is None


def test_the_batch_is_split_no_further_than_needed(workload: Build) -> None:
    work = workload(batch_size=12, accumulation=1)
    device = just_enough_for(replace(work, batch_size=6, accumulation=2))
    assert changes_that_fit(work, device)[0].overrides == (
        "training.batch_size=6",
        "training.gradient_accumulation_steps=2",
    )


def test_bfloat16_comes_when_no_batch_is_small_enough(workload: Build) -> None:
    work = workload(bfloat16=False, compiled=False, batch_size=1)
    halved = replace(work, bfloat16=True)
    assert changes_that_fit(work, just_enough_for(halved))[0].overrides == ("model.dtype=bfloat16",)


def test_another_machine_is_named_with_its_price(workload: Build) -> None:
    ways = changes_that_fit(workload(batch_size=1, accumulation=4), gpu_of(find_instance("g6.xlarge")))
    assert [way.overrides for way in ways] == [()]
    assert ways[0].instance is not None
    assert ways[0].instance.name == "g6e.xlarge"
    assert ways[0].instance.usd_per_hour is not None


def test_a_cheaper_machine_with_changes_stands_before_a_dear_one_without(load: Load) -> None:
    work = workload_of(load(NAME), on_gpu=True)
    changed, unchanged = changes_that_fit(work, gpu_of(find_instance("g6.xlarge")))
    assert changed.instance is not None
    assert unchanged.instance is not None
    assert changed.overrides
    assert unchanged.overrides == ()
    assert (changed.instance.usd_per_hour or 0) < (unchanged.instance.usd_per_hour or 0)


def test_processors_that_are_too_small_are_answered_with_a_gpu(load: Load) -> None:
    work = workload_of(load(NAME), on_gpu=False)
    ways = changes_that_fit(work, cpu(cores=2, memory_bytes=2**34))
    assert all("model.device=cuda" in way.overrides for way in ways)
    assert all(way.instance for way in ways)


def test_nothing_is_suggested_when_nothing_helps(workload: Build) -> None:
    shape = workload().architecture.model_copy(update={"num_layers": 100_000})
    assert changes_that_fit(workload(architecture=shape), gpu("H100", 2**36)) == ()


def test_every_suggestion_fits_when_it_is_made(load: Load) -> None:
    for name in ("g5.xlarge", "g6e.xlarge", "p4d.24xlarge", "p5.48xlarge"):
        device = gpu_of(find_instance(name))
        work = workload_of(load(NAME), on_gpu=True)
        assert not fits(work, device)
        for way in changes_that_fit(work, device):
            changed = workload_of(load(NAME, *way.overrides), on_gpu=True)
            assert fits(changed, gpu_of(way.instance) if way.instance else device)
            assert highest_moment(changed).parts.total == way.peak_bytes
            assert changed.tokens_per_step == work.tokens_per_step


def test_overrides_name_only_what_differs(workload: Build) -> None:
    work: Any = workload(compiled=False)
    assert overrides_between(work, work) == ()
    assert overrides_between(work, replace(work, compiled=True)) == ("compute.compile=true",)
