"""A pod after the end of its training: each launcher × configuration × later failure."""

import json
from collections.abc import Callable
from contextlib import nullcontext
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from tests.scripts.conftest import ROOT, Program
from tests.unit.training.data.test_config_of_run import WEIGHTS, with_weights

from trainyard.commands import pod as pod_command
from trainyard.config.load import config_sha256, dump_yaml, load_config
from trainyard.config.schema import Config
from trainyard.errors import ConfigError
from trainyard.jobs.recipes import program_here
from trainyard.pipeline import Step, StepRunner
from trainyard.program_training import ProgramOrder, train_program
from trainyard.run.checkpoint_manifest import MANIFEST_NAME
from trainyard.run.directory import RunDirectory
from trainyard.run.identity import write_identity, write_outcome
from trainyard.run.node_folder import NodeFolder, mark_trained, write_node
from trainyard.run_choice import trainer_facts
from trainyard.training.data import tokenize_corpus
from trainyard.training.data.config_of_run import has_changed_since

CONFIGS = sorted(
    path.stem for path in (ROOT / "configs").glob("*.yaml") if "recipe: command" not in path.read_text()
)
"""Configurations of the trainer; another program is started again, and its records show that it is done."""
STORED = "artifacts.store=s3://runs"
APART = ("checkpointing.shared=false", "compute.strategy=ddp")
FAILURES = {
    "store refused": ("store", 4),
    "not stored whole": ("store", 1),
    "storing asked to end": ("store", 143),
    "storing killed": ("store", 137),
    "pod killed while storing": ("store", None),
    "not proven": ("prove", 1),
    "store not asked": ("prove", 4),
    "proof has a bug": ("prove", 3),
    "pod killed while proving": ("prove", None),
    "report failed": ("report", 1),
    "pod killed at the report": ("report", None),
}
"""The failure -> the step in which it happens, and its exit code; None: the pod is killed."""
LAUNCHERS = ("shared", "apart", "program", "in place")


class KilledError(Exception):
    """The pod is gone."""


def program_config(folder: Path, **program: Any) -> Path:
    """Return the configuration of another program than the trainer."""
    path = folder / "program.yaml"
    program = {"command": ["false"], "directory": str(folder), "steps": 400, "data": [], **program}
    path.write_text(json.dumps({"recipe": "command", "program": program}))
    return path


def finish_program(run_dir: Path, config: Config) -> None:
    program = program_here(config, run_dir)
    facts: dict[str, Any] = {"program": program.facts, "program_sha256": program.sha256_in(run_dir)}
    of_no_inputs: dict[str, Any] = {"git": {}, "data": {"fingerprint": sha256().hexdigest()}}
    finish(run_dir, config, **facts, **of_no_inputs, recipe=config.recipe, lock_sha256=None)


class Pod:
    """A pod whose steps are simulated: `ran` has them in order, `answers` their exit codes."""

    def __init__(self, script: Any, launcher: str, config: str, folder: Path) -> None:
        self.script, self.launcher, self.run_dir = script, launcher, folder / "job"
        self.config = ROOT / "configs" / f"{config}.yaml"
        if launcher == "program":
            self.config = program_config(folder)
        apart = APART if launcher == "apart" else ()
        self.given = [*(WEIGHTS if config == "fine_tuning" else ()), STORED, *apart]
        self.ran: list[str] = []
        self.answers: dict[str, int | None] = {}

    def start(self) -> int:
        words = ["--config", str(self.config), "--run-dir", str(self.run_dir)]
        words += [word for value in self.given for word in ("--set", value)]
        more = {"in place": ["--restarts", "2"], "evictable": ["--restarts", "2", "--evictable"]}
        self.ran = []
        code: int = self.script.main([*words, *more.get(self.launcher, [])])
        return code

    def play(self, _runner: StepRunner, *steps: Step) -> int:
        for step in steps:
            self.ran.append(step.name)
            if step.name == "train":
                self.train()
            answer = self.answers.get(step.name, 0)
            if answer is None:
                raise KilledError
            if answer:
                return answer
        return 0

    def train(self) -> None:
        directory, given = RunDirectory(self.run_dir), load_config(self.config, self.given).config
        if self.launcher == "program":
            finish_program(self.run_dir, given)
            return
        config = with_weights(given) if given.model.path else given
        finish(self.run_dir, config)
        if self.launcher == "apart":
            write_node(directory, NodeFolder("job", 0, 2))
            mark_trained(directory, config_sha256(config))


@pytest.fixture
def make_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Pod]:
    def make(launcher: str, config: str) -> Pod:
        pod = Pod(pod_command, launcher, config, tmp_path)
        monkeypatch.setattr(StepRunner, "run", lambda runner, *steps: pod.play(runner, *steps))
        monkeypatch.setattr(pod_command, "follow_beside", lambda _step: nullcontext())
        if launcher == "apart":
            place = {"PET_NNODES": "2", "PET_NODE_RANK": "0", "PET_MASTER_ADDR": "localhost"}
            for name, value in place.items():
                monkeypatch.setenv(name, value)
        monkeypatch.setenv("TRAINYARD_RUN_ID", "job")  # else the script sets it for later tests
        return pod

    return make


USUAL = "training_configuration"


@pytest.mark.parametrize(
    ("launcher", "config"),
    [
        *((launcher, "" if launcher == "program" else USUAL) for launcher in LAUNCHERS),
        *(("apart", config) for config in CONFIGS if config != USUAL),
    ],
)
def test_a_finished_run_is_never_trained_again(
    launcher: str, config: str, make_pod: Callable[[str, str], Pod]
) -> None:
    """Whatever failed after the training; and the exit code says whether a restart can help."""
    pod = make_pod(launcher, config)
    first = True
    for failure, (place, answer) in FAILURES.items():
        pod.answers = {place: answer}
        for _ in range(2):
            if answer is None:
                with pytest.raises(KilledError):
                    pod.start()
            else:
                code = 6 if (place, answer) == ("prove", 1) else answer
                assert pod.start() == code, failure
            assert pod.ran.count("train") == int(first), failure
            is_reported = answer is not None or place == "report"
            assert (pod.ran[-1] == "report") is is_reported, failure
            first = False
    pod.answers = {}
    assert pod.start() == 0
    assert "train" not in pod.ran
    pod.given.append("training.max_steps=12345")
    with pytest.raises(ConfigError, match=r"training\.max_steps: "):
        pod.start()
    assert "train" not in pod.ran, "another configuration is another run"


def test_the_pod_names_the_parts_that_do_not_hold(
    make_pod: Callable[[str, str], Pod], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from trainyard.jobs.final_exit_codes import not_proven_on_record

    pod = make_pod("shared", "smoke")
    pod.answers = {"prove": 1}
    assert pod.start() == 6
    said = capsys.readouterr().err
    assert "The run is not proven: no proof was written; the lines above show the cause" in said
    monkeypatch.setattr(
        pod.script, "failing_parts", lambda _pod: [("network", "no channel\nnames EFA"), ("stored", "b")]
    )
    assert pod.start() == 6
    said = capsys.readouterr().err
    known = "not proven: network (no channel names EFA); stored (b)"
    assert not_proven_on_record(6, said.splitlines()) == known
    assert not_proven_on_record(1, said.splitlines()) is None
    assert not_proven_on_record(6, ["another program ended"]) is None


def test_a_pod_restarts_its_training_as_often_as_the_plan_says_and_not_after_a_stop(
    make_pod: Callable[[str, str], Pod], monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = make_pod("in place", "smoke")
    monkeypatch.setattr(pod, "train", lambda: None)
    for code, starts in {1: 3, 4: 3, 137: 3, 2: 1, 6: 1, 75: 1, 130: 1, 143: 1}.items():
        pod.answers = {"train": code}
        assert pod.start() == code
        assert pod.ran.count("train") == starts, code


def test_a_pod_that_was_killed_too_often_without_a_checkpoint_is_not_started_again(
    make_pod: Callable[[str, str], Pod], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator creates a Master again after 128 and more: after an eviction, a kill, a requested end."""
    pod = make_pod("evictable", "smoke")
    monkeypatch.setattr(pod, "train", lambda: None)
    for code, shown in {1: 1, 2: 2, 6: 6, 75: 143, 130: 143, 143: 143, 139: 1}.items():
        pod.answers = {"train": code}
        assert pod.start() == shown
    pod.answers = {"train": None}
    for step in (0, 7):
        RunDirectory(pod.run_dir).checkpoint(step).mkdir(parents=True)
        for _ in range(3):
            with pytest.raises(KilledError):
                pod.start()
    assert (pod.start(), pod.ran) == (1, []), "two restarts are spent"
    with pytest.raises(KilledError):
        pod.start()  # another deployment has its own restarts


def finish(run_dir: Path, config: Config, processes: int = 2, **facts: Any) -> None:
    directory = RunDirectory(run_dir)
    directory.create()
    directory.config_file.write_text(dump_yaml(config))
    facts = {**trainer_facts(), **facts, "config_sha256": config_sha256(config)}
    facts["hardware"] = {"world_size": processes}
    write_identity(directory.run_file, "job", {**facts, "plan": {"steps": 400}})
    write_outcome(directory.run_file, {"status": "succeeded", "steps": 400, "exit_code": 0})
    directory.checkpoint(400).mkdir(parents=True, exist_ok=True)
    (directory.checkpoint(400) / MANIFEST_NAME).write_text("{}")


@pytest.mark.parametrize("node", ["0", "1"])
def test_the_trainer_of_a_finished_run_waits_for_no_other_node(
    node: str, program: Program, tmp_path: Path
) -> None:
    """The others have ended. Without the outcome on record it would wait a quarter of an hour."""
    given = ["compute.strategy=ddp", "model.device=cpu"]
    path = ROOT / "configs" / "smoke.yaml"
    finish(tmp_path / "job", load_config(path, given).config)
    words = ["--config", str(path), "--run-dir", str(tmp_path / "job"), "--nproc-per-node", "1"]
    words += [word for value in given for word in ("--set", value)]
    place = {"PET_NNODES": "2", "PET_NODE_RANK": node, "PET_MASTER_ADDR": "localhost"}
    done = program("train", *words, **place)
    assert done.returncode == 0, done.stderr
    assert "all steps were done before, and nothing was trained" in done.stderr


@pytest.mark.parametrize("changed", ["processes", "checkpoint", "data", "nothing"])
def test_a_finished_run_whose_processes_data_or_checkpoint_changed_is_not_taken_for_finished(
    changed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = RunDirectory(tmp_path / "job")
    finish(directory.path, load_config(ROOT / "configs" / "smoke.yaml").config)
    monkeypatch.setattr(tokenize_corpus, "prepared_data_of", lambda _file: ("a" * 64, None))
    run = json.loads(directory.run_file.read_text())
    run["data"] = {"fingerprint": ("b" if changed == "data" else "a") * 64}
    directory.run_file.write_text(json.dumps(run))
    if changed == "checkpoint":
        (directory.checkpoint(400) / MANIFEST_NAME).unlink()
    found = has_changed_since(directory.path, 4 if changed == "processes" else 2)
    assert found is (changed != "nothing")


def test_another_program_of_a_finished_run_is_not_started_again(tmp_path: Path) -> None:
    order = ProgramOrder(config=program_config(tmp_path), run_dir=tmp_path / "job")
    finish_program(tmp_path / "job", load_config(order.config).config)
    assert train_program(order) == 0
    for change in ({"steps": 800}, {"command": ["false", "--more"]}, {"environment": {"A": "1"}}):
        program_config(tmp_path, **change)
        with pytest.raises(ConfigError, match=r"program\.steps: 400, now 800|command: |environment"):
            train_program(order)
