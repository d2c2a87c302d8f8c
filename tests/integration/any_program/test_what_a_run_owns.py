"""Which run a start is of, on real processes and stores; and what is stored of it, whatever its verdict."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests import warm_start
from tests.integration.any_program.test_any_program import TRAINER, Repository, repository

from trainyard.artifacts.store.store_address import open_store
from trainyard.artifacts.verify.comparison import Depth
from trainyard.artifacts.verify.verify import verify_run

__all__ = ["repository"]
PROGRAM = (sys.executable, "train.py")


# tests/unit/run/test_identity.py has the table itself. Each case counts the starts of the program.
class Owner(Repository):
    """A repository of somebody, whose program notes each start."""

    @property
    def starts(self) -> int:
        return sum(1 for line in self.text("starts").splitlines() if line)

    def text(self, name: str) -> str:
        path = self.folder / name
        return path.read_text() if path.exists() else ""

    def command(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        kept = {
            key: value for key, value in os.environ.items() if not key.startswith(("GITHUB_", "TRAINYARD_"))
        }
        line = [sys.executable, "-m", "trainyard", *words]
        return warm_start.run(line, cwd=self.folder, env={**kept, **variables}, timeout=300)

    def train(self, *options: str, program: Sequence[str] = (), run_id: str = "") -> int:
        settings = [word for each in self.set for word in ("--set", each)]
        named = {"TRAINYARD_RUN_ID": run_id} if run_id else {}
        self.done = self.command("run", *settings, *options, "--", *PROGRAM, *program, **named)
        return self.done.returncode

    def record(self, run_dir: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / run_dir / "run.json").read_text())
        return found

    def manifests(self) -> dict[str, bytes]:
        """Every object of the store that may not change any more."""
        found = sorted((self.folder / "trainyard-store").rglob("*"))
        return {str(path): path.read_bytes() for path in found if path.is_file() and "run-" in str(path)}

    def forget(self, *names: str) -> None:
        """Be another machine: nothing is left of the runs, but the store."""
        for name in names:
            shutil.rmtree(self.folder / name)


@pytest.fixture
def owner(repository: Repository) -> Owner:
    found = Owner(repository.folder, set=repository.set)
    note = "open('starts', 'a').write(str(os.getpid()) + '\\n')\nparser = argparse"
    (found.folder / "train.py").write_text(TRAINER.read_text().replace("parser = argparse", note, 1))
    (found.folder / ".gitignore").write_text("out/\ndied\nstarts\ntrainyard-store/\n")
    found.git("commit", "-q", "-am", "Note each start")
    return found


def change(owner: Owner, name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Change one input of the next start; return its options and the words of its program."""
    if name == "commit":
        owner.git("commit", "-q", "--allow-empty", "-m", "Another")
    elif name == "working tree":
        (owner.folder / "train.py").write_text(owner.text("train.py") + "# changed\n")
    elif name == "lock":
        (owner.folder / "requirements.txt").write_text("pinned==2.0\n")
        owner.git("commit", "-q", "-am", "Another lock")
    elif name == "data":
        (owner.folder / "data" / "tokens.txt").write_text("1 2 3 4")
        owner.git("commit", "-q", "-am", "Other data")
    options = ("--set", "program.metrics=out/none.jsonl") if name == "program.metrics" else ()
    return options, ("--steps", "4") if name == "command" else ()


CHANGES = ("commit", "working tree", "lock", "data", "command", "program.metrics")


def test_a_finished_run_is_done_for_equal_inputs_and_stays_for_others(owner: Owner) -> None:
    assert owner.train("--run-dir", "runs/a") == 0, owner.done.stderr
    assert owner.train("--run-dir", "runs/a") == 0
    assert owner.starts == 1, "nothing is trained"
    first = owner.record("runs/a")
    assert len(first["key"]) == 32
    assert (first["attempt"], list(first["stored_as"].values())) == (1, [1])
    wrong = []
    for name in CHANGES:
        owner.git("tag", "before")
        options, words = change(owner, name)
        code = owner.train("--run-dir", "runs/a", *options, program=words)
        said = owner.done.stderr
        if code != 2 or f"{name}: " not in said or "Nothing was started" not in said:
            wrong.append((name, code, owner.done.stderr))
        owner.git("reset", "-q", "--hard", "before")
        owner.git("tag", "-d", "before")
    assert not wrong
    assert (owner.starts, owner.record("runs/a")["key"]) == (1, first["key"])


def test_a_run_that_did_not_end_continues_and_one_with_other_inputs_begins_beside_it(owner: Owner) -> None:
    killed = ("--die", "4:2")
    assert owner.train("--run-dir", "runs/a", program=killed) == 137
    assert owner.train("--run-dir", "runs/a", program=killed) == 0, owner.done.stderr
    record = owner.record("runs/a")
    assert (record["attempt"], record["outcome"]["status"], owner.starts) == (2, "succeeded", 2)

    (owner.folder / "died").unlink()
    assert owner.train("--run-dir", "runs/b", program=("--die", "5:step")) == 137
    failed = owner.record("runs/b")
    for expected in (3 + 1, 3 + 1):  # the second time it is done
        assert owner.train("--run-dir", "runs/b") == 0, owner.done.stderr
        assert "the run is runs/b-2" in owner.done.stderr
        assert owner.starts == expected
    beside = owner.record("runs/b-2")
    assert failed == owner.record("runs/b"), "the old one stays"
    assert beside["key"] != failed["key"]
    assert "runs/b/checkpoints/step-" in beside["parent"]["checkpoint"]


def test_a_run_beside_one_that_diverged_begins_from_its_last_weights_without_nan(owner: Owner) -> None:
    for step, parent in (("3", "step-00000002"), ("1", "")):
        run_dir = f"runs/{step}"
        assert owner.train("--run-dir", run_dir, program=("--diverge_at", step)) == 1, owner.done.stderr
        owner.train("--run-dir", run_dir)
        assert "has NaN in its tensors" in owner.done.stderr
        begun = owner.record(f"{run_dir}-2").get("parent", {}).get("checkpoint", "")
        assert Path(begun).name == parent, (step, begun)


@pytest.mark.parametrize("lost", [(), ("out",)], ids=["same", "new container"])
def test_an_end_that_nobody_saw_is_not_recorded(owner: Owner, lost: tuple[str, ...]) -> None:
    """It was killed after its last checkpoint: its program is started again, and ends by itself."""
    assert owner.train("--run-dir", "runs/a", program=("--die", "6:5")) == 137
    owner.forget(*lost)
    assert owner.train("--run-dir", "runs/a", program=("--die", "6:5")) == 0, owner.done.stderr
    assert owner.starts == 2
    outcome = owner.record("runs/a")["outcome"]
    assert (outcome["program_exit_code"], outcome["checkpoint"]["step"]) == (0, 6)


def test_an_id_belongs_to_one_run_and_is_refused_before_training(owner: Owner) -> None:
    assert owner.train(run_id="nightly") == 0, owner.done.stderr
    before, starts = owner.manifests(), owner.starts
    owner.forget("runs")
    assert owner.train(program=("--steps", "4"), run_id="nightly") == 2
    assert "nightly" in owner.done.stderr and "belongs to another run" in owner.done.stderr
    assert owner.train("--run-number", "1", program=("--steps", "4")) == 2
    assert "belongs to run nightly" in owner.done.stderr
    assert (owner.manifests(), owner.starts) == (before, starts)
    assert owner.train("--resume", "auto", run_id="nightly") == 0, "with its inputs it is the same run"
    assert owner.starts == starts


def test_another_machine_continues_only_a_run_that_the_start_is_known_to_be_of(owner: Owner) -> None:
    stops = ("--stop_at", "3", "--save_steps", "3")
    assert owner.train(program=stops, run_id="cb-1") == 75, owner.done.stderr
    key = owner.record("runs/cb-1")["key"]
    owner.forget("runs", "out")
    assert owner.train(program=stops, run_id="cb-1") == 2, "it is not known to be this run"
    assert owner.train("--segment", "2", program=stops, run_id="cb-1") == 0, owner.done.stderr
    record = owner.record("runs/cb-1")
    assert (record["key"], record["attempt"], record["outcome"]["steps"]) == (key, 2, 6)
    attempts = list((owner.folder / "trainyard-store" / "run-1").glob("attempt-*.json"))
    assert [path.name for path in attempts] == ["attempt-2.json"]


def test_cells_of_a_matrix_and_steps_of_a_job_are_runs_of_their_own(owner: Owner) -> None:
    """The action: two cells and a second step on one runner, and a second attempt on another one."""
    changes = "\n".join(owner.set)

    def act(attempt: int, cell: str, *words: str) -> str:
        inputs = {"COMMAND": shlex.join((*PROGRAM, *words)), "CHANGES": changes, "RUN_NUMBER": "auto"}
        github = {"GITHUB_RUN_ID": "7", "GITHUB_JOB": "train", "GITHUB_RUN_ATTEMPT": str(attempt)}
        out = owner.folder.parent / "output"
        out.unlink(missing_ok=True)
        done = owner.command("step", "action", MATRIX=cell, GITHUB_OUTPUT=str(out), **inputs, **github)
        assert done.returncode == 0, done.stderr
        return out.read_text().partition("run_dir<<")[2].splitlines()[1]

    first, second = act(1, '{"lr": 1}'), act(1, '{"lr": 2}')
    third = act(1, '{"lr": 2}', "--steps", "4")
    assert first.startswith("runs/gh-7-train-") and len({first, second, third}) == 3
    assert third == f"{second}-2", "a second step of the job"
    runs = [owner.record(each) for each in (first, second, third)]
    assert len({run["key"] for run in runs}) == 3
    assert [list(run["stored_as"].values()) for run in runs] == [[1], [2], [3]]
    before = owner.starts
    owner.forget("runs")
    assert act(2, '{"lr": 2}') == second
    assert owner.starts == before, "the second attempt of the job finds its run in the store"


def test_a_machine_that_dies_loses_its_newest_checkpoint_and_the_next_attempt_resumes(owner: Owner) -> None:
    """A job of train.yml: the second attempt has the plan of the first, and a fresh machine."""
    program = [*PROGRAM, "--steps", "20", "--pause", "1"]
    resume = f"resume: [--resume_from_checkpoint, '{{checkpoint}}'], command: {json.dumps(program)}"
    (owner.folder / "trainyard.yaml").write_text(f"recipe: command\nprogram: {{data: [data], {resume}}}\n")
    owner.git("add", "-A")
    owner.git("commit", "-q", "-m", "Configure")
    store = owner.folder / "trainyard-store"
    plan = {"config": "trainyard.yaml", "overrides": "", "store": store.as_uri(), "run_number": "9"}
    plan |= {"run_id": "gh-9", "run_dir": "runs/gh-9", "title": "9", "segment": "1", "most_segments": "20"}
    plan |= {"resume": "auto", "fetch": "false", "deadline": "30m", "target": "gpu-runner", "thread": ""}
    job = {"TRAINYARD_PLAN": json.dumps({**plan, "job_minutes": 60, "reason": "", "expected": "{}"})}
    job["GITHUB_RUN_ID"] = "9"
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("GITHUB_", "TRAINYARD_"))}
    words = [sys.executable, "-m", "trainyard", "step", "action"]
    quiet = subprocess.DEVNULL
    machine = subprocess.Popen(words, cwd=owner.folder, env={**kept, **job}, stdout=quiet, stderr=quiet)
    until = time.monotonic() + 240
    while not list(store.glob("manifests/run-9-open-*.json")) and time.monotonic() < until:
        time.sleep(0.2)
    for pid in (machine.pid, int(owner.text("starts").split()[-1])):
        os.kill(pid, signal.SIGKILL)
    machine.wait()
    saved = owner.folder / "runs" / "gh-9" / "checkpoints"
    stored, local = (
        sorted(int(path.parent.name.partition("-")[2]) for path in folder.glob("*-*/manifest.json"))
        for folder in (store / "run-9", saved)
    )
    assert stored and set(local[:-1]) <= set(stored)
    found = verify_run(open_store(store.as_uri()), 9, depth=Depth.FULL)
    assert found.ok, found.problems
    owner.forget("runs", "out")
    done = owner.command("step", "action", **job, GITHUB_RUN_ATTEMPT="2")
    assert done.returncode == 0, done.stderr
    events = map(json.loads, owner.text("runs/gh-9/events.jsonl").splitlines())
    assert [event["step"] for event in events if event["event"] == "resumed"] == [stored[-1]]
    assert owner.record("runs/gh-9")["outcome"]["steps"] == 20


def test_a_pod_that_returns_without_its_disk_continues_its_run(owner: Owner) -> None:
    (owner.folder / "config.yaml").write_text(
        "recipe: command\n"
        f'artifacts: {{store: "file://{owner.folder}/trainyard-store"}}\n'
        f"program: {{command: {json.dumps([*PROGRAM, '--stop_at', '4'])}, data: [data], "
        'resume: [--resume_from_checkpoint, "{checkpoint}"]}\n'
    )
    owner.git("add", "-A")
    owner.git("commit", "-q", "-m", "Configure")

    def start() -> int:
        words = ("pod", "--config", "config.yaml", "--run-dir", "runs/job")
        return owner.command(*words, TRAINYARD_RUN_ID="team-llama-1").returncode

    assert start() == 75
    first = owner.record("runs/job")
    store = f"file://{owner.folder}/trainyard-store"
    assert owner.command("store", "sync", "--run-dir", "runs/job", "--store", store).returncode == 0
    owner.forget("runs", "out")
    assert start() == 0
    again = owner.record("runs/job")
    assert (again["run_id"], again["key"]) == ("team-llama-1", first["key"])
    assert (again["attempt"], again["outcome"]["steps"]) == (2, 6)


KILLED = ("--die", "5:step")
# The words of the program -> the status on record, and the steps that it saves.
ENDS = {(): ("succeeded", [2, 4, 6]), KILLED: ("failed", [2, 4]), ("--nan_at", "5"): ("failed", [2, 4, 6])}


def stored_steps(store: Path) -> list[int]:
    """Return the steps of the complete checkpoints in the store."""
    markers = store.glob("run-1/checkpoint-*/manifest.json")
    return sorted(int(marker.parent.name.partition("-")[2]) for marker in markers)


@pytest.mark.parametrize("stores_failed", [True, False])
def test_a_run_is_stored_whatever_its_verdict_unless_that_is_switched_off(
    repository: Repository, stores_failed: bool
) -> None:
    repository.set = ["program.data=[data]", f"artifacts.store_failed={str(stores_failed).lower()}"]
    ends = ENDS if stores_failed else {KILLED: ENDS[KILLED]}
    for number, (words, (status, saved)) in enumerate(ends.items()):
        store, run = repository.folder.parent / f"store-{number}", f"runs/{number}"
        where = ("--run-dir", run, "--store", store.absolute().as_uri())
        done = repository.run("--json", *where, "--", sys.executable, "train.py", *words)
        found: dict[str, Any] = json.loads(done.stdout)
        assert found["outcome"]["status"] == status, done.stderr
        assert (done.returncode == 0) is (status == "succeeded"), done.stderr
        subprocess.run(["rm", "-rf", "died", "out"], cwd=repository.folder, check=True)
        if not stores_failed:
            assert stored_steps(store) == []
            continue
        # All that were copied into the run directory; the program may save faster than they are copied.
        assert stored_steps(store)[-1:] == saved[-1:], done.stderr
        manifest = json.loads((store / "manifests" / "run-1-manifest.json").read_bytes())
        assert manifest["outcome"]["status"] == status
