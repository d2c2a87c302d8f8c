"""Another program on a node: its run directory, and the verdict of a proof on it."""

import io
import json
import os
import re
import signal
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from tests.scripts.conftest import Program
from tests.unit.jobs.state.shapes import job, seen
from tests.unit.watch.test_network_verdict import VERSIONS, cases, process

from trainyard.jobs.state.state_machine import judge_job
from trainyard.program_training import (
    ProgramOrder,
    describe_start,
    lock_of_image,
    time_limit_of_slurm,
    train_program,
)
from trainyard.run.atomic_files import sha256_of_file
from trainyard.run.run_lock import is_locked
from trainyard.watch.failure_classes import FailureClass
from trainyard.watch.retry_decision import RetryRecord, Stop, decide_retry

PROGRAM = """
import json, os, signal, sys, time, zipfile
from pathlib import Path
asked = json.loads(sys.argv[1])
folder = Path(asked["folder"])
def save(step):
    target = folder / f"global_step_{step}"
    (target / "actor").mkdir(parents=True, exist_ok=True)
    for name in ("data.pt", "actor/model_world_size_1_rank_0.pt", "actor/optim_world_size_1_rank_0.pt"):
        with zipfile.ZipFile(target / name, "w") as file:
            file.writestr("archive/data.pkl", b"weights of %d" % step)
    if step == asked["cut"]:
        (target / "actor" / "model_world_size_1_rank_0.pt").write_bytes(b"PK")
    (folder / "latest_checkpointed_iteration.txt").write_text(str(step))
tracker = folder / "latest_checkpointed_iteration.txt"
done = int(tracker.read_text()) if tracker.exists() else 0
print("a line of its own", os.environ["ITS_OWN"], flush=True)
for number, log in enumerate(asked["logs"]):  # as actors on all nodes write into the shared directory
    place = os.environ["NCCL_DEBUG_FILE"].replace("%h", f"machine-{number}").replace("%p", str(number))
    Path(place).write_text(log)
for step in range(done + 1, asked["until"] + 1):
    loss = asked["losses"].get(str(step), 1.0 / step)
    print(f"(TaskRunner pid=7) step:{step} - actor/pg_loss:{loss} - critic/score/mean:0.5", flush=True)
    if step in asked["saves"]:
        save(step)
if asked["waits"]:
    def end(*_):
        sys.exit(asked["exit"])
    signal.signal(signal.SIGTERM, end)
    Path(asked["folder"], "waits").touch()
    time.sleep(60)
sys.exit(asked["exit"])
"""


class World:
    """A job's files, and what its pod runs."""

    def __init__(self, folder: Path, program: Program) -> None:
        self.folder, self.run_dir, self._program = folder, folder / "run", program
        self.nodes, self.network, self.environment = 1, "tcp", dict[str, str]()
        self.own = self.run_dir / "program"
        self.own.mkdir(parents=True)
        (folder / "fake.py").write_text(PROGRAM)

    def config(self, **changes: Any) -> Path:
        asked = {"folder": str(self.own), "until": 4, "losses": {}, "saves": [2, 4]}
        asked |= {"waits": False, "cut": 0, "exit": 0, "logs": []}
        program = {
            "command": [sys.executable, str(self.folder / "fake.py"), json.dumps({**asked, **changes})],
            "steps": 4,
            "checkpoints": f"{self.own}/global_step_*/",
            "environment": {"ITS_OWN": "variable"},
        }
        path = self.folder / "config.yaml"
        config = {"recipe": "command", "program": program, "compute": {"network": self.network}}
        path.write_text(json.dumps(config))
        return path

    def words(self, **changes: Any) -> list[str]:
        words = ["--config", str(self.config(**changes)), "--run-dir", str(self.run_dir)]
        return [*words, "--num-nodes", str(self.nodes)]

    def run(self, **changes: Any) -> subprocess.CompletedProcess[str]:
        given = {"TRAINYARD_RUN_ID": "llama", **self.environment}
        return self._program("pod", *self.words(**changes), **given)

    def outcome(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.run_dir / "run.json").read_text())["outcome"]
        return found

    def events(self) -> list[str]:
        return [
            json.loads(line)["event"] for line in (self.run_dir / "events.jsonl").read_text().splitlines()
        ]


@pytest.fixture
def world(tmp_path: Path, program: Program) -> World:
    return World(tmp_path, program)


def test_a_part_of_a_checkpoint_is_not_taken_and_the_difference_is_stated(world: World) -> None:
    """The program's own tracker names step 4, but a file of that checkpoint is cut off."""
    done = world.run(cut=4)
    assert done.returncode == 0, done.stderr
    assert "a line of its own variable" in done.stdout
    assert "a line of its own variable" in (world.run_dir / "logs" / "node-0.log").read_text()
    assert world.outcome()["checkpoint"]["step"] == 2
    assert world.events() == ["started", "checkpoint_saved", "checkpoint_rejected", "finished"]
    missing = "global_step_4 is not complete: global_step_4/actor/model_world_size_1_rank_0.pt is cut off"
    rejected = [json.loads(line) for line in (world.run_dir / "events.jsonl").read_text().splitlines()][2]
    assert rejected["reason"] == f"{missing}; global_step_2 is the newest"
    assert not (world.run_dir / "checkpoints" / "step-00000004").exists()


@pytest.mark.parametrize("name", ["direct", "sockets", "none"])
def test_a_program_of_ray_on_two_nodes_is_judged_by_the_logs_of_all_nodes(name: str, world: World) -> None:
    """Ray starts the program on one node; its actors on both write NCCL's log into the run directory."""
    form = VERSIONS["nccl 2.30, plugin 1.21"]
    world.nodes = 2
    world.network = "efa"
    log = world.run_dir / "logs" / "nccl-node-0-%h-%p.log"
    world.environment = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": str(log)}
    world.environment["TRAINYARD_INSTANCE_TYPE"] = "ml.p5.48xlarge"
    logs = [] if name == "none" else [process(form, cases(form)[name], rank, 2) for rank in range(2)]
    done = world.run(logs=["".join(log) for log in logs])
    lines = (world.run_dir / "events.jsonl").read_text().splitlines()
    found = [event for event in map(json.loads, lines) if event["event"] == "network"]
    verdicts = {"direct": ["efa-gpudirect"], "sockets": ["tcp-fallback"], "none": []}
    assert [event["verdict"] for event in found] == verdicts[name], done.stderr
    assert done.returncode == (6 if name == "sockets" else 0), done.stderr
    assert json.loads((world.run_dir / "run.json").read_text())["hardware"]["world_size"] == 2
    if name == "sockets":
        said = f"Job entrypoint command failed with exit code 6, last available logs:\n{done.stderr}"
        failed: dict[str, Any] = {"jobDeploymentStatus": "Failed", "jobStatus": "FAILED", "message": said}
        state = judge_job(seen("rayjob", job("rayjob", **failed)))
        assert state.failure is not None
        assert (state.failure.failure_class, state.failure.exit_code) == (FailureClass.TCP_FALLBACK, 6)
        assert decide_retry(state, RetryRecord(5), step=100, jitter=0.5) == Stop(
            "no retry recovers from tcp-fallback"
        )


def test_torchrun_starts_it_on_one_of_two_nodes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    place = {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "first", "PET_NPROC_PER_NODE": "8"}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    order = ProgramOrder(config=world.config(), run_dir=world.run_dir, processes=8)
    command = describe_start(order)["command"]
    assert command[1:3] == ["-m", "torch.distributed.run"]
    assert {"--nnodes=2", "--nproc-per-node=8", "--node-rank=1", "--master-addr=first"} < set(command)
    assert command[-2] == str(world.folder / "fake.py")
    assert not (world.run_dir / "run.json").exists()


def test_a_process_that_lives_on_is_as_before(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pipeline calls it before and after other work, and keeps its own stdout for JSON."""
    monkeypatch.setenv("TRAINYARD_RUN_ID", "llama")
    run_dir, numbers = world.run_dir, signal.valid_signals()
    before, environment = [signal.getsignal(each) for each in numbers], dict(os.environ)
    shown, outcomes = io.BytesIO(), list[Any]()
    for words, code in (({"exit": 9}, 1), ({}, 0), ({}, 0)):  # it fails, resumes, and was done before
        order = ProgramOrder(config=world.config(**words), run_dir=run_dir)
        with redirect_stdout(io.TextIOWrapper(shown)) as printed:
            assert train_program(order, on_outcome=outcomes.append) == code
            printed.detach()
        assert [signal.getsignal(each) for each in numbers] == before and dict(os.environ) == environment
        assert not is_locked(run_dir)
    assert [each["status"] for each in outcomes] == ["failed", "succeeded", "succeeded"]
    assert b"a line of its own variable" in shown.getvalue()


def test_the_lock_of_an_image_is_the_one_that_its_record_names(tmp_path: Path) -> None:
    lock, record = tmp_path / "requirements.txt", tmp_path / "image.json"
    lock.write_text("numpy==2.0.0\n")
    assert lock_of_image(record) is None
    found = {"locks": {lock.name: sha256_of_file(lock)}, "code": {"directory": str(tmp_path)}}
    for changed, expected in (({}, lock), ({"locks": {}}, None), ({"code": None}, None)):
        record.write_text(json.dumps({**found, **changed}))
        assert lock_of_image(record) == expected
    record.write_text(json.dumps(found))
    lock.write_text("numpy==2.0.1\n")
    assert lock_of_image(record) is None


def test_slurm_ended_a_program_only_near_the_end_of_its_job() -> None:
    end = {"SLURM_JOB_END_TIME": "1000"}
    for environment, now in (({}, 1000.0), (end, 800.0), ({"SLURM_JOB_END_TIME": "x"}, 1000.0)):
        assert time_limit_of_slurm(environment, now) == {}
    found = time_limit_of_slurm(end, 970.0)
    assert (found["class"], found["retry"], found["level"]) == ("time-limit", "yes", "fact")


def test_what_keeps_a_run_from_being_proven_is_reported_before_its_first_step(
    program: Program, tmp_path: Path
) -> None:
    """Each line says what helps, and following it removes the line."""
    (tmp_path / "train.py").write_text('print({"step": 1, "loss": 1.0}, flush=True)\n')
    (tmp_path / "text.txt").write_text("words")

    def reported(*settings: str) -> set[str]:
        words = [word for each in settings for word in ("--set", each)]
        done = program("run", *words, "--", sys.executable, "train.py", GITHUB_ACTIONS="true")
        before = done.stderr.partition("training")[0]
        found = set(re.findall(r"before: this run cannot be proven without ([\w ]+): ", before))
        assert len(re.findall("::warning title=Not provable::", done.stderr)) == len(found), done.stderr
        return found

    git = ("git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b")
    assert reported() == {"commit", "lock", "data"}
    (tmp_path / "requirements.txt").write_text("numpy==2.0.0\n")
    for words in (("init", "-q"), ("add", "train.py", "requirements.txt"), ("commit", "-qm", "Train")):
        subprocess.run([*git, *words], check=True)
    (tmp_path / "train.py").write_text('print({"step": 1, "loss": 1.5}, flush=True)\n')
    assert reported() == {"a clean working tree", "data"}
    subprocess.run([*git, "commit", "-qam", "Change"], check=True)
    assert reported("program.data=[text.txt]") == set()
