"""The plan as one value."""

import json

import pytest
from tests.unit.plan.conftest import load

from trainyard.errors import ConfigError
from trainyard.plan.cost import RentedMachines
from trainyard.plan.device import cpu, gpu_of
from trainyard.plan.instances import find_instance
from trainyard.plan.training_plan import plan_training


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
