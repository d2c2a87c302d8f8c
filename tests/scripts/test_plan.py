"""Whether a training fits, before its launch, by the command as people call it."""

import json
from functools import partial
from pathlib import Path

import pytest
from tests.scripts.conftest import Call

from trainyard.config.load import load_config

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
EAGER = ["model.dtype=float32", "compute.compile=false"]
SMOKE, LARGE = CONFIGS / "smoke.yaml", CONFIGS / "training_configuration.yaml"


@pytest.fixture
def plan(called: Call) -> Call:
    return partial(called, "plan", "--config")


def test_the_smoke_run_fits_on_the_processors_of_this_machine(plan: Call) -> None:
    done = plan(SMOKE, "--set", "model.device=cpu")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("smoke-llama fits on ")
    assert "$" not in done.stdout


def test_the_advice_of_a_plan_that_does_not_fit_fits(plan: Call) -> None:
    def settings(overrides: list[str]) -> list[str]:
        return [argument for override in overrides for argument in ("--set", override)]

    refused = plan(LARGE, *settings(EAGER), "--instance-type", "g6.xlarge", "--json")
    assert refused.returncode == 1
    advice = json.loads(refused.stdout)["advice"]
    assert advice
    for way in advice:
        load_config(LARGE, way["set"])
        changed = settings([*EAGER, *way["set"]])
        done = plan(LARGE, *changed, "--instance-type", way.get("instance_type", "g6.xlarge"), "--json")
        assert done.returncode == 0, done.stdout
        assert json.loads(done.stdout)["memory"]["peak_bytes"] == way["peak_bytes"]


def test_another_share_of_the_peak_and_more_nodes_change_the_cost(plan: Call) -> None:
    line = (LARGE, "--instance-type", "p5.48xlarge", "--json", "--mfu")
    slow = json.loads(plan(*line, "0.2").stdout)["estimate"]
    fast = json.loads(plan(*line, "0.4", "--num-nodes", "3").stdout)["estimate"]
    assert slow["seconds"] == pytest.approx(2 * fast["seconds"])
    assert fast["usd"] == pytest.approx(3 / 2 * slow["usd"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--instance-type", "p5.48xlrge"), "did you mean p5.48xlarge?"),
        (("--set", "training.max_step=5"), "did you mean training.max_steps?"),
        (("--num-nodes", "0"), "'0' is not a whole number above 0"),
        (("--num-nodes", "²"), "is not a whole number above 0"),
        (("--mfu", "40"), "'40' is not a share such as 0.4"),
        (("--mfu", "nan"), "'nan' is not a share such as 0.4"),
        (("--set", "model.device=cuda:97"), "--instance-type"),
    ],
)
def test_wrong_usage_is_named(plan: Call, arguments: tuple[str, ...], said: str) -> None:
    done = plan(SMOKE, *arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stdout == ""
