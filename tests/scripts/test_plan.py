"""Before a training, by the commands: whether it fits, whether its run can be proven, and its data."""

import json
from functools import partial
from pathlib import Path

import pytest
from tests.cases import each_case
from tests.scripts.conftest import ROOT, Call, Program, load_script, require_success
from tests.unit.jobs.plans import config, request
from tests.unit.jobs.recipe_orders import GIVEN, recipe_config
from tests.unit.proof.test_proof import judge

from trainyard.cluster.checks import CHECKS
from trainyard.commands import step_plan
from trainyard.config.load import load_config
from trainyard.config.schema import Config
from trainyard.errors import ConfigError
from trainyard.jobs.job_planning import plan_job
from trainyard.proof import PARTS

CONFIGS = ROOT / "configs"
EAGER = ["model.dtype=float32", "compute.compile=false"]
SMOKE, LARGE = CONFIGS / "smoke.yaml", CONFIGS / "training_configuration.yaml"


@pytest.fixture
def plan(called: Call) -> Call:
    return partial(called, "plan", "--config")


def test_the_smoke_run_fits_on_the_processors_of_this_machine(plan: Call) -> None:
    done = require_success(plan(SMOKE, "--set", "model.device=cpu"))
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


CONFIG = """\
model: {{name: m}}
training: {{max_steps: 2, warmup_steps: 0}}
data: {{train_path: {train}, prepared_directory: {prepared}, sequence_length: 16,
        validation_fraction: 0.0}}
"""


@pytest.fixture
def data_config(tmp_path: Path) -> Path:
    """A configuration for five text files."""
    for number in range(5):
        (tmp_path / "train").mkdir(exist_ok=True)
        (tmp_path / "train" / f"{number}.txt").write_text("some text\n" * 100)
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG.format(train=tmp_path / "train", prepared=tmp_path / "prepared"))
    return path


def test_says_what_is_held_out_of_few_files(data_config: Path, called: Call) -> None:
    for number in range(1, 5):
        (data_config.parent / "train" / f"{number}.txt").unlink()
    data_config.write_text(data_config.read_text().replace("fraction: 0.0", "fraction: 0.02"))
    result = require_success(called("prepare", "--config", data_config))
    assert "validation (the end of it) [ok]" in result.stderr


def test_gives_the_facts_as_json(data_config: Path, called: Call) -> None:
    first, second = (
        json.loads(called("prepare", "--config", data_config, "--json").stdout) for _ in range(2)
    )
    assert first["train_files"] == 5
    assert first["train_tokens"] == 5005
    assert (first["reused"], second["reused"]) == (False, True)
    assert first["fingerprint"] == second["fingerprint"]
    assert Path(first["train_path"]).stat().st_size == 5005


def test_a_dry_run_writes_nothing(data_config: Path, called: Call) -> None:
    result = called("prepare", "--config", data_config, "--dry-run", "--json")
    assert result.returncode == 0
    assert "5 files to train on, 0 held out" in result.stderr
    planned = json.loads(result.stdout)
    assert planned["bytes"] == 5000
    assert not Path(planned["directory"]).parent.exists()


def test_the_shipped_smoke_configuration_needs_no_files(tmp_path: Path, called: Call) -> None:
    result = called("prepare", "--config", SMOKE, "--set", f"data.prepared_directory={tmp_path}", "--json")
    assert result.returncode == 0, result.stderr
    assert "MB train" in result.stderr
    assert json.loads(result.stdout)["validation_tokens"] > 100_000


def test_a_stream_is_tried_and_one_that_cannot_be_reached_exits_4(
    data_config: Path, tmp_path: Path, program: Program
) -> None:
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")}
    whole = ("--set", "data.hugging_face.validation_split=null", "--json")
    line = ("--config", data_config, *whole, "--set", "data.train_path=null", "--set")
    here = program("prepare", *line, f"data.hugging_face.dataset={tmp_path}/train", **offline)
    assert here.returncode == 0, here.stderr
    assert "train: read while training, nothing to prepare [ok]" in here.stderr
    assert len(json.loads(here.stdout)["fingerprint"]) == 64
    assert not (tmp_path / "prepared").exists()
    away = program("prepare", *line, "data.hugging_face.dataset=allenai/c4", **offline)
    assert away.returncode == 4
    assert "\nallenai/c4 cannot be read from the Hugging Face Hub (" in f"\n{away.stderr}"
    assert "Unset HF_HUB_OFFLINE, or" in away.stderr


def test_a_failure_is_in_the_job_summary(data_config: Path, tmp_path: Path, called: Call) -> None:
    files = {"GITHUB_STEP_SUMMARY": str(tmp_path / "summary"), "GITHUB_OUTPUT": str(tmp_path / "output")}
    for text in (tmp_path / "train").iterdir():
        text.write_text("")
    result = called("prepare", "--config", data_config, **files)
    assert result.returncode == 2
    summary = (tmp_path / "summary").read_text()
    assert summary.startswith("### ❌ Not started: the data could not be prepared\n")
    reason = result.stderr.strip().splitlines()[-1]
    assert reason in summary
    assert reason in (tmp_path / "output").read_text()


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
    event: str, is_set_up: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It does not warn where no run starts."""
    role = "arn:aws:iam::123456789012:role/x" if is_set_up else ""
    eks = {"CLUSTER": "yard", "ROLE": role, "NODES": "2", "INSTANCE_TYPE": "p5.48xlarge"}
    variables = {f"TRAINYARD_EKS_{name}": value for name, value in eks.items()}
    variables |= {"GITHUB_EVENT_NAME": event, "TRAINYARD_STORE": STORE}
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
