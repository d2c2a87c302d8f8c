"""Plans whose run cannot be proven: each reports it before anything is sent, in the words of the proof.

Rule: what a plan states is what `prove` answers on the best records that such a run can leave.
"""

import itertools
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cases import each_case
from tests.unit.jobs.plans import config, instance_for, request
from tests.unit.jobs.recipe_orders import GIVEN, recipe_config
from tests.unit.proof.test_joining_network import facts_of
from tests.unit.proof.test_proof import FINISHED, SAVED, SETTINGS, STARTED, Found, judge, proven_run

from trainyard.cluster.checks import CHECKS
from trainyard.config.schema import Config
from trainyard.errors import ConfigError
from trainyard.jobs.job_planning import plan_job
from trainyard.jobs.job_spec import JobSpec
from trainyard.jobs.kinds import KINDS
from trainyard.proof import PARTS
from trainyard.proof.proof import Proof
from trainyard.watch.network_record import EVENT, network_event
from trainyard.watch.network_verdict import Expectation

ROOT = Path(__file__).resolve().parents[2]
SMOKE = ROOT / "configs" / "smoke.yaml"
STORE = "s3://ml-runs/phase2"
OWN = ("python", "work.py")
RECIPES = ("pretrain", "command", *GIVEN)
TYPES = ("p5.48xlarge", "g6.12xlarge", "g6.xlarge")
"""With EFA and RDMA, with EFA, without EFA."""
SHAPES = list(itertools.product((1, 2), ("auto", "efa", "tcp"), TYPES, (STORE, "")))
Program = Callable[..., subprocess.CompletedProcess[str]]


def settings_of(recipe: str, network: str, store: str) -> Config:
    changes = (f"compute.network={network}", *([f"artifacts.store={store}"] if store else []))
    if recipe in GIVEN:
        return recipe_config(recipe, *changes)
    return config("compute.strategy=ddp", *changes)


def best_proof(settings: Config, plan: JobSpec, recipe: str) -> Proof:
    """The verdict on a run of the plan in which all went well; its configuration is that of its pods."""
    if recipe == "command":
        return judge({}, [], [], Found(None, checkpoints={}))
    size = plan.processes_per_node
    run = {
        **proven_run(),
        "recipe": recipe,
        "hardware": {"world_size": plan.nodes * size, "local_world_size": size},
    }
    if recipe in GIVEN:  # what a program records; test_run_program.py runs it
        del run["data"], run["outcome"]["state_sha256"]
    in_pods = yaml.safe_load(plan.program.files["config.yaml"])
    found = Found() if settings.artifacts.store else Found(None, checkpoints={})
    facts = [facts_of("direct", nodes=plan.nodes, processes=size)]
    network = {"event": EVENT, **network_event(facts, Expectation())}
    events: list[dict[str, Any] | None] = [STARTED, network, SAVED, FINISHED]
    return judge(run, events=events, found=found, settings={**SETTINGS, "compute": in_pods["compute"]})


@each_case("kind", KINDS)
@each_case("recipe", RECIPES)
def test_a_plan_states_what_the_proof_will_say_of_its_run(
    kind: str, recipe: str, load_script: Callable[[str], Any], caplog: pytest.LogCaptureFixture
) -> None:
    deploy, planned = load_script("job_deploy"), 0
    for nodes, network, instance, store in SHAPES:
        settings = settings_of(recipe, network, store)
        asked = request(
            kind=kind,
            nodes=nodes,
            instance_type=instance_for(kind, instance),
            command=OWN if recipe == "command" else (),
        )
        try:
            plan = plan_job(settings, asked)
        except ConfigError:
            continue  # it is refused for another reason, before anything is sent
        planned += 1
        expected = [part.name for part in best_proof(settings, plan, recipe).failing]
        parts = deploy.unproven_parts(settings, plan)
        assert [part.name for part in parts] == expected, (nodes, network, instance, store)
        of_programs = dict.fromkeys(GIVEN, ("trained", "learned", "stored"))
        deciding = {"command": (), **of_programs}.get(recipe, PARTS)
        red = [name for name in expected if store and name in deciding]
        caplog.clear()
        if red:
            with pytest.raises(ConfigError) as refusal:
                deploy.check_provable(settings, plan, [])
            assert all(f"--accept {name}" in str(refusal.value) for name in red)
            assert "Nothing was sent" in str(refusal.value)
        deploy.check_provable(settings, plan, red)
        stated = [record.getMessage() for record in caplog.records]
        assert all(any(name in line for line in stated) for name in expected)
        assert bool(stated) == bool(expected)
    assert planned or (kind, recipe) in refused_pairs()


def refused_pairs() -> set[tuple[str, str]]:
    """Kind and recipe of the jobs that no plan accepts."""
    return {(kind, "verl") for kind in KINDS if kind not in ("rayjob", "raycluster")}


def test_the_remedy_that_a_plan_names_makes_it_provable(load_script: Callable[[str], Any]) -> None:
    """With the level WARN, NCCL's log does not show the channels."""
    deploy = load_script("job_deploy")
    asked = request(kind="rayjob", nodes=2, environment={"NCCL_DEBUG": "WARN"})
    (part, _) = deploy.unproven_parts(
        settings := settings_of("verl", "efa", STORE), plan_job(settings, asked)
    )
    assert (part.name, part.fix.split()[0]) == ("network", "compute.network=tcp")
    changed = settings_of("verl", "tcp", STORE)
    (left,) = deploy.unproven_parts(changed, plan_job(changed, asked))
    assert left.name == "repeatable"


def test_parts_of_the_proof_and_checks_of_a_cluster_have_different_names() -> None:
    assert tuple(part.name for part in judge().parts) == PARTS
    assert not {check.name for check in CHECKS} & set(PARTS)


@each_case("network", ["auto", "efa", "tcp"])
@each_case("nodes", [1, 2])
@each_case("instance", [*TYPES[:1], *TYPES[2:], ""])
def test_plan_training_states_it_below_the_result(
    instance: str,
    nodes: int,
    network: str,
    load_script: Callable[[str], Any],
    capsys: pytest.CaptureFixture[str],
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


def test_plan_run_states_it_in_the_first_lines(
    load_script: Callable[[str], Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = {
        "TRAINYARD_EKS_CLUSTER": "gpus",
        "TRAINYARD_EKS_ROLE": "arn:aws:iam::123456789012:role/train",
        "TRAINYARD_EKS_INSTANCE_TYPE": TYPES[0],
        "TRAINYARD_RUNNER_LABELS": '["self-hosted","gpu"]',
        "TRAINYARD_STORE": STORE,
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    unproven = ("eks", "2", "efa", "cpu")
    others = (("here", "2", "efa", "cpu"), ("eks", "1", "efa", "cpu"), ("eks", "2", "tcp", "cpu"))
    for target, nodes, network, device in (unproven, *others, ("eks", "2", "efa", "auto")):
        monkeypatch.setenv("TRAINYARD_EKS_NODES", nodes)
        changes = f"compute.strategy=ddp compute.network={network} model.device={device}"
        words = ["--config", str(SMOKE), "--settings", changes, "--target", target]
        assert load_script("step_plan").main(words) == 0
        head = capsys.readouterr().out.splitlines()[:4]
        is_stated = any("This run cannot be proven: network: " in line for line in head)
        assert is_stated is ((target, nodes, network, device) == unproven), (target, nodes, network, device)


@pytest.mark.parametrize("event", ["push", "schedule", "workflow_dispatch"])
@pytest.mark.parametrize("is_set_up", [True, False])
def test_a_plan_warns_only_of_what_trains(
    event: str,
    is_set_up: bool,
    load_script: Callable[[str], Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It does not warn where no run starts."""
    variables = {
        "GITHUB_ACTIONS": "true",
        "GITHUB_EVENT_NAME": event,
        "TRAINYARD_EKS_CLUSTER": "yard",
        "TRAINYARD_EKS_ROLE": "arn:aws:iam::123456789012:role/x" if is_set_up else "",
        "TRAINYARD_EKS_NODES": "2",
        "TRAINYARD_EKS_INSTANCE_TYPE": "p5.48xlarge",
        "TRAINYARD_STORE": STORE,
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    changes = "compute.strategy=ddp compute.network=efa model.device=cpu"
    words = ["--config", str(SMOKE), "--settings", changes, "--target", "eks"]
    if not is_set_up and event == "workflow_dispatch":
        monkeypatch.setenv("INPUTS", '{"dry_run": "true"}')
    assert load_script("step_plan").main(words) == 0
    said = capsys.readouterr().err
    assert ("title=This run cannot be proven" in said) is is_set_up
