"""The text of a plan."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainyard.config.load import load_config
from trainyard.plan.cost import RentedMachines
from trainyard.plan.device import cpu, gpu, gpu_of
from trainyard.plan.instances import find_instance
from trainyard.plan.training_plan import plan_training
from trainyard.report.plan.plan_text import plan_text_lines

EAGER = ("model.dtype=float32", "compute.compile=false")
"""The settings that take most memory."""
CONFIGS = Path(__file__).resolve().parents[4] / "configs"


@pytest.fixture
def plan() -> Callable[..., dict[str, Any]]:
    """The plan of a shipped configuration on an instance type, or on a device."""

    def build(name: str, *overrides: str, on: Any, nodes: int = 1) -> dict[str, Any]:
        config = load_config(CONFIGS / f"{name}.yaml", overrides).config
        instance = find_instance(on) if isinstance(on, str) else None
        device = gpu_of(instance) if instance else on
        return plan_training(config, device, rented=RentedMachines(instance, nodes)).to_json()

    return build


def test_the_first_line_says_whether_the_run_fits(plan: Callable[..., dict[str, Any]]) -> None:
    yes = plan_text_lines(plan("smoke", on=cpu(cores=2, memory_bytes=2**34)))
    assert yes[0] == "smoke-llama fits on 2 CPU cores: 197.2 MB at the peak, 15.2 GB usable"
    no = plan_text_lines(plan("training_configuration", *EAGER, on="g6e.xlarge"))
    assert no[0].startswith(
        "tinyllama-1b does not fit on one L40S (g6e.xlarge): 96.6 GB at the peak, 44.5 GB"
    )
    assert no[0].endswith(" too much")


def test_every_part_that_takes_memory_has_a_line(plan: Callable[..., dict[str, Any]]) -> None:
    data = plan("training_configuration", on="p5.48xlarge")
    text = "\n".join(plan_text_lines(data))
    shown = {name for name, size in data["memory"]["parts"].items() if f"\n    {name} " in text}
    assert shown == {name for name, size in data["memory"]["parts"].items() if size}
    assert {"weights", "moments", "copies", "activations", "logits"} <= shown


def test_the_cost_names_price_date_and_number_of_nodes(plan: Callable[..., dict[str, Any]]) -> None:
    text = "\n".join(plan_text_lines(plan("training_configuration", on="p5.48xlarge", nodes=2)))
    assert "2 × p5.48xlarge at $ 55.04 an hour (us-east-1, on demand, 2026-07-20)" in text
    assert "idle          15 of 16 GPUs: the run uses 1" in text


def test_the_advice_has_a_line_to_copy(plan: Callable[..., dict[str, Any]]) -> None:
    text = plan_text_lines(plan("training_configuration", *EAGER, on="g6e.xlarge"))
    where = text.index("It fits here with 37.4 GB:")
    assert text[where + 1] == "  --set training.batch_size=1 --set training.gradient_accumulation_steps=16"
    assert text[-1] == "  --instance-type g7e.2xlarge"
    assert any(line.startswith("It fits on one RTX PRO 6000 Server, $ 3.36 an hour") for line in text)


def test_unknown_figures_are_said_and_an_endless_run_has_a_speed(plan: Callable[..., dict[str, Any]]) -> None:
    open_end = ("training.max_steps=null", "training.epochs=2")
    text = "\n".join(plan_text_lines(plan("smoke", *open_end, on=gpu("Some GPU", 2**36))))
    assert "its length is not known" in text
    assert "no peak is on record for Some GPU" in text
    assert "cost" not in text and "$" not in text
    assert "  speed         about " in "\n".join(plan_text_lines(plan("smoke", *open_end, on="g6.xlarge")))


def test_a_model_that_fits_on_no_machine_gets_that_advice(plan: Callable[..., dict[str, Any]]) -> None:
    text = plan_text_lines(
        plan("training_configuration", "model.architecture.num_layers=1000000", on="p6-b300.48xlarge")
    )
    assert text[-1].startswith("No change is enough: ")


def test_a_sharded_plan_shows_its_devices(plan: Callable[..., dict[str, Any]]) -> None:
    data = plan("training_configuration", "compute.strategy=fsdp", "training.batch_size=2", on="g6.xlarge")
    data["device"]["devices_used"], data["run"]["shards"] = 8, 8
    text = plan_text_lines(data)
    assert "  layout        fsdp: 1 × 8 devices (replicas × shards)" in text
    data["run"]["tensor_parallel"] = 2
    assert "  layout        fsdp: 1 × 8 × 2 devices (replicas × shards × tensor parallel)" in plan_text_lines(
        data
    )


def test_main_memory_has_a_line_and_can_be_the_reason_for_no_fit(plan: Callable[..., dict[str, Any]]) -> None:
    small = gpu("H100", 80 * 2**30, host_bytes=12 * 2**30)
    behind = ("compute.compile=false", "checkpointing.mode=async")
    text = plan_text_lines(plan("training_configuration", *behind, "training.batch_size=1", on=small))
    assert "main memory   13.2 GB for the copy that checkpointing.mode: async saves from" in "\n".join(text)
    assert text[0].endswith(" usable, but 13.2 GB of main memory, 2.0 GB too much")
    assert text[text.index("It fits here with 24.2 GB:") + 1] == "  --set checkpointing.mode=sync"
    text = plan_text_lines(plan("smoke", "checkpointing.mode=async", on=cpu(cores=2, memory_bytes=2**34)))
    assert any(line.startswith("    staging ") for line in text)
    assert not any("main memory" in line for line in text)
