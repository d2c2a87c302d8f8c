"""Plans whose run cannot be proven: each command reports it before anything is sent."""

import json
from pathlib import Path

import pytest
from tests.cases import each_case
from tests.scripts.conftest import load_script
from tests.unit.jobs.plans import config, request
from tests.unit.jobs.recipe_orders import GIVEN, recipe_config
from tests.unit.proof.test_proof import judge

from trainyard.cluster.checks import CHECKS
from trainyard.commands import step_plan
from trainyard.config.schema import Config
from trainyard.errors import ConfigError
from trainyard.jobs.job_planning import plan_job
from trainyard.proof import PARTS

ROOT = Path(__file__).resolve().parents[2]
SMOKE = ROOT / "configs" / "smoke.yaml"
STORE = "s3://ml-runs/phase2"
OWN = ("python", "work.py")
WORKFLOW = {"GITHUB_ACTIONS": "true", "GITHUB_RUN_ID": "1", "GITHUB_RUN_NUMBER": "1", "GITHUB_SHA": "0" * 40}
TYPES = ("p5.48xlarge", "g6.xlarge")
"""With EFA and RDMA, without EFA."""


@each_case(
    ("recipe", "kind", "unproven", "refused"),
    [
        ("pretrain", "pytorchjob", ("network",), ("network",)),
        ("command", "trainjob", PARTS, ()),
        ("megatron", "pytorchjob", ("network",), ("network",)),
        ("verl", "rayjob", ("network",), ("network",)),
    ],
)
def test_a_plan_warns_of_what_cannot_be_proven_and_is_refused_if_the_job_would_fail_by_it(
    recipe: str,
    kind: str,
    unproven: tuple[str, ...],
    refused: tuple[str, ...],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With the level WARN, NCCL's log does not show the channels; over TCP none is needed."""
    deploy, own = load_script("job_deploy"), OWN if recipe == "command" else ()
    asked = request(kind=kind, nodes=2, environment={"NCCL_DEBUG": "WARN"}, command=own)
    for network, expected in (("efa", unproven), ("tcp", unproven if own else unproven[1:])):
        settings = settings_of(recipe, network)
        plan = plan_job(settings, asked)
        parts = deploy.unproven_parts(settings, plan)
        assert tuple(part.name for part in parts) == expected
        red = [name for name in expected if name in refused]
        if red:
            with pytest.raises(ConfigError, match=f"(?s)add --accept {red[0]}. Nothing was sent"):
                deploy.check_provable(settings, plan, [])
        caplog.clear()
        deploy.check_provable(settings, plan, red)
        stated = [record.getMessage() for record in caplog.records]
        assert all(any(name in line for line in stated) for name in expected)
        assert bool(stated) == bool(expected)


def settings_of(recipe: str, network: str) -> Config:
    changes = (f"compute.network={network}", f"artifacts.store={STORE}")
    if recipe in GIVEN:
        return recipe_config(recipe, *changes)
    return config("compute.strategy=ddp", *changes)


def test_parts_of_the_proof_and_checks_of_a_cluster_have_different_names() -> None:
    assert tuple(part.name for part in judge().parts) == PARTS
    assert not {check.name for check in CHECKS} & set(PARTS)


@each_case("network", ["auto", "efa", "tcp"])
@each_case("nodes", [1, 2])
@each_case("instance", [*TYPES, ""])
def test_plan_training_states_it_below_the_result(
    instance: str, nodes: int, network: str, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--instance-type", instance] if instance else ["--set", "model.device=cpu"]
    words = ["--config", str(SMOKE), "--set", "compute.strategy=ddp", "--set", f"compute.network={network}"]
    words += [*where, "--num-nodes", str(nodes)]
    main = load_script("plan").main
    main(words)
    second = capsys.readouterr().out.splitlines()[1]
    red = nodes == 2 and network != "tcp" and not instance  # a CPU, whose processes have no log of NCCL
    assert second.startswith("cannot be proven: network: ") if red else second == ""
    main([*words, "--json"])
    unproven = json.loads(capsys.readouterr().out)["unproven"]
    assert [part["name"] for part in unproven] == (["network"] if red else [])


@pytest.mark.parametrize("event", ["push", "schedule", "workflow_dispatch"])
@pytest.mark.parametrize("is_set_up", [True, False])
def test_a_plan_warns_only_of_what_trains(
    event: str,
    is_set_up: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It does not warn where no run starts."""
    variables = {
        "GITHUB_EVENT_NAME": event,
        "TRAINYARD_EKS_CLUSTER": "yard",
        "TRAINYARD_EKS_ROLE": "arn:aws:iam::123456789012:role/x" if is_set_up else "",
        "TRAINYARD_EKS_NODES": "2",
        "TRAINYARD_EKS_INSTANCE_TYPE": "p5.48xlarge",
        "TRAINYARD_STORE": STORE,
    }
    for name, value in (WORKFLOW | variables).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(step_plan, "keep_commit", lambda plan: plan)
    changes = "compute.strategy=ddp compute.network=efa model.device=cpu"
    dry_run = not is_set_up and event == "workflow_dispatch"
    inputs = {"config": str(SMOKE), "set": changes, "runner": "eks", "dry_run": str(dry_run)}
    monkeypatch.setenv("INPUTS", json.dumps(inputs))
    assert step_plan.main([]) == 0
    said = capsys.readouterr().err
    assert ("title=This run cannot be proven" in said) is is_set_up
