"""The plan as one value: its operations, time, cost, and the smallest change that makes it fit."""

import json
from dataclasses import replace

import pytest
from tests.unit.plan.conftest import load, workload

from trainyard.config.schema import ArchitectureConfig, TrainingConfig
from trainyard.errors import ConfigError
from trainyard.plan.advice import changes_that_fit, fits_device
from trainyard.plan.cost import RentedMachines, default_mfu, estimate
from trainyard.plan.device import Device, cpu, gpu, gpu_of
from trainyard.plan.device_memory import highest_memory_peak
from trainyard.plan.flops import flops_per_token
from trainyard.plan.instances import find_instance
from trainyard.plan.training_plan import plan_training
from trainyard.plan.workload import Layout, Recomputation, TrainingWorkload, training_workload


def test_what_is_not_known_is_absent() -> None:
    plan = plan_training(load("smoke"), cpu(cores=2, memory_bytes=2**35), rented=RentedMachines(None, 1))
    data = json.loads(json.dumps(plan.to_json()))
    assert plan.fits
    assert data["fits"] is True
    assert data["advice"] == []
    assert not {"instance_type", "usd_per_hour", "prices_as_of", "devices"} & set(data["device"])
    assert "usd" not in data["estimate"]
    assert data["parameters"]["total"] == 803_968


def test_the_parts_are_those_of_the_peak_and_add_up() -> None:
    instance = find_instance("p5.48xlarge")
    config = load("training_configuration", "model.dtype=bfloat16")
    data = plan_training(config, gpu_of(instance), rented=RentedMachines(instance, 3)).to_json()
    memory = data["memory"]
    assert sum(memory["parts"].values()) == memory["peak_bytes"]
    assert memory["peak_bytes"] == max(moment["bytes"] for moment in memory["moments"])
    assert data["device"]["devices"] == 24
    assert data["device"]["devices_used"] == 1
    assert data["device"]["usd_per_hour"] == 3 * 55.04


def test_another_recipe_is_refused_with_a_way_to_measure_it() -> None:
    with pytest.raises(
        ConfigError, match=r"recipe: command cannot be planned: only the trainer of this repository"
    ):
        plan_training(load("grpo"), cpu(cores=2, memory_bytes=2**35), rented=RentedMachines(None, 1))


def test_a_token_takes_six_operations_a_multiplied_parameter_and_its_attention() -> None:
    shape = ArchitectureConfig(
        vocab_size=4096,
        hidden_size=256,
        intermediate_size=1024,
        num_layers=6,
        num_attention_heads=8,
        num_key_value_heads=8,
    )
    multiplied = 4096 * 256 + 6 * (4 * 256 * 256 + 3 * 256 * 1024)
    assert flops_per_token(shape, 256) == 6 * multiplied + 12 * 6 * 256 * 256 == 48_758_784


def test_the_input_table_costs_nothing_and_a_tied_output_does() -> None:
    untied, tied = ArchitectureConfig(), ArchitectureConfig(tie_word_embeddings=True)
    assert flops_per_token(untied, 64) == flops_per_token(tied, 64)


HERE = RentedMachines(None, 1)


def test_time_is_operations_over_the_assumed_share_of_the_peak() -> None:
    instance, work = find_instance("p5.48xlarge"), workload()
    result = estimate(
        TrainingConfig(max_steps=1000), work, gpu_of(instance), rented=RentedMachines(instance, 2), mfu=0.5
    )
    flops = 1000 * 4 * 2048 * flops_per_token(work.architecture, 2048)
    assert result.tokens == 1000 * 4 * 2048
    assert result.flops == flops
    assert result.seconds == pytest.approx(flops / (0.5 * 989e12))
    assert result.usd == pytest.approx(flops / (0.5 * 989e12) / 3600 * 2 * 55.04)


def test_what_is_not_known_is_none_and_never_zero() -> None:
    training = TrainingConfig(max_steps=10)
    unknown_gpu = estimate(training, workload(), gpu("Some GPU", 2**36), rented=HERE, mfu=0.4)
    assert (unknown_gpu.seconds, unknown_gpu.usd, unknown_gpu.tokens_per_second) == (None, None, None)
    assert unknown_gpu.tokens == 10 * 4 * 2048
    unpriced = find_instance("p5e.48xlarge")
    rented = RentedMachines(unpriced, 1)
    without_price = estimate(training, workload(), gpu_of(unpriced), rented=rented, mfu=0.4)
    assert without_price.seconds is not None
    assert without_price.usd is None
    endless = estimate(TrainingConfig(epochs=3), workload(), gpu("H100", 2**36), rented=HERE, mfu=0.4)
    assert (endless.steps, endless.tokens, endless.flops, endless.seconds) == (None, None, None, None)
    assert endless.tokens_per_second is not None


def test_compiled_steps_are_assumed_to_be_faster() -> None:
    assert default_mfu(workload(compiled=True)) > default_mfu(workload(compiled=False))
    assert default_mfu(workload(on_gpu=False)) > default_mfu(workload())


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
