"""`make train` and `make resume` when a step fails or is interrupted: real make, real pipeline, real signals.

Stand-ins replace the steps, so that each can fail in each way; `test_make_train.py` has the real ones.
"""

import os
import pty
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests import warm_start
from tests.waiting import wait_for

from trainyard.config.load import config_sha256, dump_yaml, load_config
from trainyard.gateways.git import git_facts
from trainyard.run.identity import collect_provenance, write_identity

REPOSITORY_ROOT = Path(__file__).resolve().parents[2]
BEFORE = ("machine", "readiness", "prepare")
"""The steps before there is a run to report on."""
STEPS = (*BEFORE, "train", "store", "prove")
STAND_IN = """\
import os, pathlib, signal, sys, time
folder, run = pathlib.Path({folder!r}), pathlib.Path(sys.argv[1])
with (folder / "calls").open("a") as calls:
    calls.write("train\\n")
run.mkdir(parents=True, exist_ok=True)
(run / "run.json").write_text('{{"run_id": "one run"}}')
plan = folder / "train"
how = plan.read_text() if plan.exists() else "0"
if how == "waits":
    def stopped(number, frame):
        time.sleep(0.3)  # the save
        (folder / "saved").touch()
        os._exit(75)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stopped)
    (folder / "waiting").touch()
    time.sleep(600)
sys.exit(int(how))
"""
PIPELINE = """\
import os, pathlib, sys, time
from trainyard import pipeline
from trainyard.command.handler import exit_code_of
from trainyard.commands import run_command
from trainyard.errors import CheckFailedError
folder = pathlib.Path({folder!r})
def stand_in(name):
    def apply(**values):
        with (folder / "calls").open("a") as calls:
            calls.write(" ".join([name, *([values["notice"].event] if "notice" in values else [])]) + "\\n")
        (folder / "command_line").write_text(os.environ.get("TRAINYARD_COMMAND_LINE", "none"))
        plan = folder / name
        how = plan.read_text() if plan.exists() else "0"
        if how == "waits":
            (folder / "waiting").touch()
            time.sleep(600)
        if how == "raises":
            raise CheckFailedError("the reason of this step")
        return int(how)
    return apply
for name, step in {{
    "check_environment": "machine", "check_readiness": "readiness", "prepare_data": "prepare",
    "store_run": "store", "prove_run": "prove", "write_report": "report", "notify": "notify",
}}.items():
    setattr(pipeline, name, stand_in(step))
pipeline.training_command = lambda order: (
    [sys.executable, {folder!r} + "/stand_in.py", str(order.run_dir)]
)
def main():
    code = run_command(sys.argv[1:])
    (folder / "modules").write_text(" ".join(sys.modules))
    return code
sys.exit(exit_code_of(main))
"""


class Stage:
    """The folder in which make runs the stand-ins."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.run = folder, folder / "runs" / "one run"
        (folder / "bin").mkdir()
        (folder / "stand_in.py").write_text(STAND_IN.format(folder=str(folder)))
        (folder / "pipeline.py").write_text(PIPELINE.format(folder=str(folder)))
        line = shlex.join([sys.executable, str(folder / "pipeline.py")])  # "#!" takes no spaces
        (folder / "bin" / "python").write_text(f'#!/bin/sh\nshift 2\nexec {line} "$@"\n')
        (folder / "bin" / "python").chmod(0o755)
        for name in ("training.stamp", "development.stamp"):
            (folder / name).touch()

    def line(self, target: str, *words: str) -> list[str]:
        stand_in = [f"VENV={self.folder}", "-o", f"{self.folder}/training.stamp"]
        slack = "SET=notifications.slack.enabled=true"
        return ["make", "-C", str(REPOSITORY_ROOT), target, *stand_in, f"RUN_DIR={self.run}", slack, *words]

    @property
    def command(self) -> list[str]:
        """The pipeline without make."""
        line = [sys.executable, str(self.folder / "pipeline.py"), "run", "--run-dir", str(self.run)]
        config = REPOSITORY_ROOT / "configs" / "smoke.yaml"
        return [*line, "--config", str(config), "--set", "notifications.slack.enabled=true"]

    @property
    def calls(self) -> list[str]:
        """The steps that were taken, in order."""
        return [line.split()[0] for line in (self.folder / "calls").read_text().splitlines()]


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    folder = tmp_path / "stage"
    folder.mkdir()
    return Stage(folder)


ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
ENVIRONMENT["SLACK_WEBHOOK_URL"] = "http://127.0.0.1:9/nobody"
STARTED = ["notify"]
REPORTED = ["report", "notify", "notify"]


def test_make_names_the_exit_code_of_the_step_that_fails(stage: Stage) -> None:
    (stage.folder / "store").write_text("4")
    done = subprocess.run(stage.line("train"), env=ENVIRONMENT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 2, "of make, whatever fails"
    assert "train] Error 4\n" in done.stderr
    assert stage.calls == [*BEFORE, *STARTED, "train", "store", "prove", *REPORTED]


@pytest.mark.parametrize(("step", "code"), [("readiness", 1), ("train", 137), ("train", 75), ("prove", 1)])
def test_the_report_follows_a_step_that_fails(stage: Stage, step: str, code: int) -> None:
    (stage.folder / step).write_text(str(code))
    done = warm_start.run(stage.command, env=ENVIRONMENT, timeout=240)
    assert done.returncode == code, done.stderr
    if step in BEFORE:
        assert stage.calls == list(STEPS[: STEPS.index(step) + 1])
        return
    before = [*BEFORE, *STARTED, *STEPS[len(BEFORE) : STEPS.index(step) + 1]]
    if step == "train":
        before.append("store")  # its checkpoints, whatever the verdict will be
    if step != "prove" and code != 75:
        before.append("prove")
    assert stage.calls == [*before, *REPORTED]
    said = (stage.folder / "calls").read_text().splitlines()[-1]
    assert said.startswith(f"notify {'stopped' if code == 75 else 'failed'}")


def test_a_run_that_is_there_already_is_reported_on_also_when_it_does_not_go_on(stage: Stage) -> None:
    stage.run.mkdir(parents=True)
    config = load_config(REPOSITORY_ROOT / "configs" / "smoke.yaml", []).config
    (stage.run / "config.yaml").write_text(dump_yaml(config))
    lock = REPOSITORY_ROOT / "requirements-training.txt"
    facts = collect_provenance(git_facts(REPOSITORY_ROOT), lock=lock, config_file=stage.run / "config.yaml")
    write_identity(stage.run / "run.json", "one run", facts | {"config_sha256": config_sha256(config)})
    (stage.folder / "readiness").write_text("2")
    done = subprocess.run(stage.line("resume"), env=ENVIRONMENT, capture_output=True, text=True, timeout=240)
    assert f"resume: {stage.run}\n" in done.stderr, "which run it is"
    assert "resume] Error 2\n" in done.stderr
    assert stage.calls == ["machine", "readiness", *REPORTED]


def test_a_report_that_fails_after_a_failure_does_not_hide_it(stage: Stage) -> None:
    (stage.folder / "train").write_text("4")
    for name in ("prove", "report", "notify"):
        (stage.folder / name).write_text("3")
    assert warm_start.run(stage.command, env=ENVIRONMENT, timeout=240).returncode == 4


def test_ctrl_c_reaches_the_trainer_and_the_report_follows_its_save(stage: Stage) -> None:
    (stage.folder / "train").write_text("waits")
    process, terminal = pty.fork()
    if not process:
        os.execvpe("make", stage.line("train"), ENVIRONMENT)
    wait_for((stage.folder / "waiting").exists, "the step to wait")
    os.write(terminal, b"\x03")
    _, status = os.waitpid(process, 0)
    os.close(terminal)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 2
    assert (stage.folder / "saved").exists()
    assert stage.calls == [*BEFORE, *STARTED, "train", "store", *REPORTED]


@pytest.mark.parametrize(
    ("step", "number", "code"),
    [("prepare", signal.SIGTERM, 143), ("store", signal.SIGINT, 130), ("prove", signal.SIGTERM, 143)],
)
def test_a_signal_ends_the_step_in_this_process_and_the_report_follows(
    stage: Stage, step: str, number: int, code: int
) -> None:
    (stage.folder / step).write_text("waits")
    process = warm_start.Popen(stage.command, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
    wait_for((stage.folder / "waiting").exists, "the step to wait")
    process.send_signal(number)
    _, said = process.communicate(timeout=120)
    assert (process.returncode, said.count("Interrupted.")) == (code, 1)
    if step == "prepare":
        assert stage.calls == list(BEFORE)
    else:
        proven = ["prove"] if step == "store" else []
        before = [*BEFORE, *STARTED, *STEPS[len(BEFORE) : STEPS.index(step) + 1]]
        assert stage.calls == [*before, *proven, *REPORTED]


def test_the_error_of_a_step_is_printed_with_its_exit_code_and_torch_is_not_imported(stage: Stage) -> None:
    """This process waits for the training, and must not hold the memory of torch meanwhile."""
    (stage.folder / "store").write_text("raises")
    done = subprocess.run(stage.line("train"), env=ENVIRONMENT, capture_output=True, text=True, timeout=240)
    assert "train] Error 1\n" in done.stderr
    assert "the reason of this step\n" in done.stderr and "Traceback" not in done.stderr
    assert stage.calls == [*BEFORE, *STARTED, "train", "store", "prove", *REPORTED]
    modules = (stage.folder / "modules").read_text().split()
    assert "trainyard.pipeline" in modules and "torch" not in modules


@pytest.mark.parametrize("group", [False, True])
def test_sigterm_to_make_reaches_the_trainer_and_the_report_follows_its_save(
    stage: Stage, group: bool
) -> None:
    """SIGTERM to make alone, as `kill` sends it, or to its process group, as systemd and `timeout` do."""
    (stage.folder / "train").write_text("waits")
    process = subprocess.Popen(
        stage.line("train"), env=ENVIRONMENT, start_new_session=True, stderr=subprocess.DEVNULL
    )
    wait_for((stage.folder / "waiting").exists, "the step to wait")
    (os.killpg if group else os.kill)(process.pid, signal.SIGTERM)
    assert process.wait(120) in (-signal.SIGTERM, 2)
    assert (stage.folder / "saved").exists()
    assert stage.calls == [*BEFORE, *STARTED, "train", "store", *REPORTED]


def test_the_store_that_make_was_given_is_that_of_the_suggested_commands(stage: Stage) -> None:
    line = stage.line("train", "STORE=file:///my/store")
    subprocess.run(line, env=ENVIRONMENT, check=True, capture_output=True, timeout=240)
    assert (stage.folder / "command_line").read_text() == "trainyard run --store file:///my/store"
    assert stage.calls == [*BEFORE, *STARTED, *STEPS[len(BEFORE) :], *REPORTED]
