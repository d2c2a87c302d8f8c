"""Any program in somebody's repository: trained, stored and proven, killed at every moment, resumed.

The repository has nothing of ours, lies in a folder with a space, and its program knows nothing of Trainyard.
"""

import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests import warm_start

TRAINER = Path(__file__).parent / "plain_trainer.py"
RESUME = 'program.resume=[--resume_from_checkpoint, "{checkpoint}"]'
STEPS, SAVES = 6, (2, 4, 6)


@dataclass
class Repository:
    """A repository of somebody else."""

    folder: Path
    set: list[str] = field(default_factory=lambda: ["program.data=[data]", RESUME])
    popen: type["subprocess.Popen[str]"] = warm_start.Popen

    def start(self, *words: str, name: str = "run", **options: Any) -> "subprocess.Popen[str]":
        changes = [word for each in self.set for word in ("--set", each)]
        line, pipe = [sys.executable, "-m", "trainyard", name, *changes, *words], subprocess.PIPE
        kept = {key: value for key, value in os.environ.items() if not key.startswith("GITHUB_")}
        options |= {"cwd": self.folder, "env": kept}
        return self.popen(line, stdout=pipe, stderr=pipe, text=True, **options)

    def run(self, *words: str, name: str = "run") -> subprocess.CompletedProcess[str]:
        process = self.start(*words, name=name)
        out, error = process.communicate(timeout=300)
        return subprocess.CompletedProcess(words, process.returncode, out, error)

    def proven(self, *words: str) -> dict[str, Any]:
        """Run the pipeline with --json, and return what it prints; `words` are the program's arguments."""
        done = self.run("--json", "--run-dir", "runs/a", "--", sys.executable, "train.py", *words)
        found: dict[str, Any] = json.loads(done.stdout)
        assert found["exit_code"] == done.returncode, done.stderr
        return found

    def records(self, name: str, run: str = "a") -> list[dict[str, Any]]:
        lines = (self.folder / "runs" / run / f"{name}.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def steps(self, run: str = "a") -> list[int]:
        """Return the steps on record; a row of an epoch has none."""
        return [row["step"] for row in self.records("metrics", run) if "step" in row]

    def git(self, *words: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@b.example")
        subprocess.run(["git", *who, *words], cwd=self.folder, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    folder = tmp_path / "somebody's work"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "tokens.txt").write_text("1 2 3")
    (folder / "train.py").write_text(TRAINER.read_text())
    (folder / "requirements.txt").write_text("pinned==1.0\n")
    (folder / ".gitignore").write_text("out/\ndied\n")
    found = Repository(folder)
    found.git("init", "-q")
    found.git("add", "-A")
    found.git("commit", "-q", "-m", "Train")
    return found


def parts_of(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {part["name"]: part for part in found["proof"]["parts"]}


def test_a_program_is_green_in_a_repository_with_nothing_of_ours(repository: Repository) -> None:
    repository.popen = subprocess.Popen  # as its owner starts it
    found = repository.proven()

    assert found["exit_code"] == 0
    assert found["outcome"]["status"] == "succeeded"
    assert [part for part in parts_of(found).values() if not part["passed"]] == []
    assert found["proof"]["proven"] is True
    promise = "same inputs on record; the program's own determinism is not checked"
    assert promise in parts_of(found)["repeatable"]["evidence"]
    assert repository.steps() == list(range(1, STEPS + 1))
    status = ["git", "status", "--porcelain"]
    changed = subprocess.run(status, cwd=repository.folder, capture_output=True, check=True).stdout
    assert changed == b"", "what Trainyard writes is ignored by git"
    assert prove_from_outside(repository, "trainyard-store") == 0


def prove_from_outside(repository: Repository, store: str) -> int:
    """Prove the stored run on a machine that has the store, and no repository, as a job of GitHub does."""
    elsewhere = repository.folder.parent / "elsewhere"
    elsewhere.mkdir()
    (repository.folder / store).rename(elsewhere / "store")
    repository.folder.rename(elsewhere / "away")
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GITHUB_")}
    place = ["--store", f"file://{elsewhere}/store"]
    for words in (
        ["store", "restore", "--run-number", "1", "--step", "none", "--to", "back", *place],
        ["prove", "--run-dir", "back", *place],
    ):
        line = [sys.executable, "-m", "trainyard", *words]
        done = subprocess.run(line, env=environment, cwd=elsewhere, timeout=300, check=False)
    return done.returncode


def losses(repository: Repository) -> list[float]:
    return [row["loss"] for row in repository.records("metrics") if "step" in row]


# Before the first file of the first save, and in the next save. After the last one: test_what_a_run_owns.py.
MOMENTS = [(2, 0), (4, 3)]


@pytest.mark.slow
def test_a_program_that_is_killed_at_any_moment_resumes_from_its_newest_complete_checkpoint(
    repository: Repository,
) -> None:
    command = ("--", sys.executable, "train.py")
    assert repository.run("--run-dir", "runs/a", *command).returncode == 0
    whole = losses(repository)
    for step, moment in MOMENTS:
        subprocess.run(["rm", "-rf", "runs", "out", "died"], cwd=repository.folder, check=True)
        config = repository.folder / "died.yaml"
        config.write_text(
            "recipe: command\nprogram:\n"
            f"  command: [{json.dumps(sys.executable)}, train.py, --die, '{step}:{moment}']\n"
        )
        words = ("--config", str(config), "--run-dir", "runs/a")
        first = repository.run(*words, name="train")
        assert first.returncode == 137, (step, moment, first.stderr)
        assert repository.run(*words, name="train").returncode == 0, (step, moment)
        saved = [each for each in SAVES if each < step]
        events = [event for event in repository.records("events") if event["event"] in ("started", "resumed")]
        second = events[1]
        wanted = ("resumed", max(saved)) if saved else ("started", None)
        assert (second["event"], second.get("step")) == wanted, (step, moment)
        assert losses(repository) == whole, (step, moment)
        outcome = json.loads((repository.folder / "runs/a/run.json").read_text())["outcome"]
        assert (outcome["status"], outcome["steps"]) == ("succeeded", STEPS)
        assert outcome["checkpoint"]["step"] == STEPS


NANOGPT = """
import math, os, sys, torch
last = int(sys.argv[1])
os.makedirs("out", exist_ok=True)
for iter_num in range(last + 1):
    loss = 1 + 3 * math.exp(-iter_num / 20)
    if iter_num % 20 == 0:
        print(f"step {iter_num}: train loss {loss:.4f}, val loss {loss:.4f}")
        state = {"model": {"w": torch.ones(2)}, "optimizer": {"state": torch.ones(2)}, "model_args": {}}
        print("saving checkpoint to out")
        state |= {"iter_num": iter_num, "best_val_loss": torch.tensor(loss), "config": {}}
        torch.save(state, "out/ckpt.pt")
    if iter_num % 5 == 0:
        print(f"iter {iter_num}: loss {loss:.4f}, time 101.50ms, mfu -100.00%")
"""
"""The loop of nanoGPT's train.py: it evaluates and saves before a step, and ends after one more."""


def test_nanogpt_is_proven_if_it_ends_with_an_evaluation(repository: Repository) -> None:
    (repository.folder / "train.py").write_text(NANOGPT)
    repository.git("commit", "-q", "-am", "Train as nanoGPT does")
    repository.set = ["program.data=[data]"]

    done = repository.run("--json", "--run-dir", "runs/a", "--", sys.executable, "train.py", "60")

    found = json.loads(done.stdout)
    rows = repository.records("metrics")
    assert rows[0]["step"] == 0, "the evaluation before the first step"
    assert found["outcome"]["checkpoint"]["step"] == 60
    wrong = {part["name"]: part["evidence"] for part in parts_of(found).values() if not part["passed"]}
    assert (done.returncode, wrong) == (0, {}), done.stderr
    assert found["outcome"]["steps"] == rows[-1]["step"] == 60


@pytest.mark.process
def test_a_second_run_at_once_in_one_folder_is_refused_unless_it_has_places_of_its_own(
    repository: Repository,
) -> None:
    check = "import os\nassert os.path.isdir(os.environ['TRAINYARD_OUTPUT'])\n"
    (repository.folder / "train.py").write_text(check + TRAINER.read_text())
    repository.git("commit", "-q", "-am", "Train")
    repository.set = ["program.data=[data]"]
    command = ("--", sys.executable, "train.py", "--pause", "0.3", "--steps")
    first = repository.start("--run-dir", "runs/a", *command, "20")
    until = time.monotonic() + 120
    while not (repository.folder / "runs/a/metrics.jsonl").exists() and time.monotonic() < until:
        time.sleep(0.02)

    second = repository.run("--run-dir", "runs/b", *command, "20")
    own = repository.run("--run-dir", "runs/c", *command, "21", "--output_dir", "{run_dir}/output")

    assert first.communicate(timeout=120) and first.returncode == 0
    assert second.returncode == 2 and "runs/a" in second.stderr and "Nothing was started" in second.stderr
    assert not (repository.folder / "runs/b").exists()
    assert own.returncode == 0, own.stderr
    record = json.loads((repository.folder / "runs/c/run.json").read_text())
    assert record["program"]["command"][-1] == "{run_dir}/output"
    for run, step, place in (("a", 20, "out"), ("c", 21, "runs/c/output")):
        (stored,) = (repository.folder / f"runs/{run}/checkpoints/step-{step:08d}").rglob("model.safetensors")
        written = repository.folder / place / f"checkpoint-{step}" / "model.safetensors"
        assert stored.read_bytes() == written.read_bytes()
    again = ("--run-dir", "runs/b", "--", sys.executable, "train.py")
    assert repository.run(*again).returncode == 0, "the first has ended"


@pytest.mark.process
def test_rows_of_a_run_that_is_killed_with_its_program_are_read_from_its_log(repository: Repository) -> None:
    command = ("--run-dir", "runs/a", "--", sys.executable, "train.py", "--hang_at", "4")
    process = repository.start(*command)
    until, log = time.monotonic() + 120, repository.folder / "runs/a/logs/node-0.log"
    # What is still in the pipe is lost with the command.
    while time.monotonic() < until and not (log.exists() and '"step": 4' in log.read_text()):
        time.sleep(0.02)
    while time.monotonic() < until and not (repository.folder / "died").exists():
        time.sleep(0.02)  # else the next start hangs, too
    for pid in (*warm_start.descendants(process.pid), process.pid):
        os.kill(pid, signal.SIGKILL)
    process.communicate(timeout=60)
    is_recorded = (repository.folder / "runs/a/metrics.jsonl").exists()
    assert not is_recorded or 4 not in repository.steps(), "the newest row waits for the next one"

    assert repository.run(*command).returncode == 0
    assert repository.steps() == list(range(1, STEPS + 1))
    events = [event for event in repository.records("events") if event["event"] == "resumed"]
    assert [event["step"] for event in events] == [4]


def test_a_program_that_picks_its_checkpoint_itself_meets_no_partial_one(repository: Repository) -> None:
    repository.set = ["program.data=[data]"]
    command = ("--run-dir", "runs/a", "--", sys.executable, "train.py", "--resume_from_newest")
    assert repository.run(*command, "--die", "4:3").returncode == 137
    assert (repository.folder / "out/checkpoint-4").is_dir()

    done = repository.run(*command, "--die", "4:3")

    assert done.returncode == 0, done.stderr
    assert (repository.folder / "out/partial-checkpoints/checkpoint-4").is_dir()
    assert "checkpoint-4 is not complete" in done.stderr
    events = [event for event in repository.records("events") if event["event"] == "resumed"]
    assert [event["step"] for event in events] == [2]


def test_a_newer_checkpoint_of_weights_alone_is_named_and_not_resumed_from(repository: Repository) -> None:
    """It was also copied into the run directory, from which no program resumes it either."""
    config = repository.folder / "died.yaml"
    command = [sys.executable, "train.py", "--die", "5:step", "--weights_only_at", "4"]
    config.write_text(f"recipe: command\nprogram:\n  command: {json.dumps(command)}\n")
    words = ("--config", str(config), "--run-dir", "runs/a")
    assert repository.run(*words, name="train").returncode == 137
    assert (repository.folder / "runs/a/checkpoints/step-00000004/manifest.json").is_file()

    done = repository.run(*words, name="train")

    assert done.returncode == 0, done.stderr
    assert "checkpoint-4 is complete, but holds weights alone" in done.stderr
    events = [event for event in repository.records("events") if event["event"] == "resumed"]
    assert [event["step"] for event in events] == [2]


COPIED = """
import copy, json, torch
net = torch.nn.Linear(4, 4)
first, optimizer = copy.deepcopy(net), torch.optim.SGD(net.parameters(), lr=1e-2)
for step in range(1, 21):
    loss = (net(torch.ones(2, 4)) - 1).square().mean()
    optimizer.zero_grad(), loss.backward(), optimizer.step()
    print(json.dumps(dict(step=step, loss=loss.item())))
torch.save(first.state_dict(), "model.pt")
"""
"""It saves a copy of the model that it does not train."""
HIDDEN = COPIED.replace("first.state", "net.state") + "raise SystemExit(3)"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("sleep", "1"), "no metrics were seen"),
        ((sys.executable, "train.py", "--nan_at", "3"), "step 3"),
        ((sys.executable, "-c", COPIED), "has weights from before the training"),
        ((sys.executable, "-c", COPIED.replace("1e-2", "0.0")), "the training has changed no weight"),
        (("sh", "-c", f"'{sys.executable}' -c '{HIDDEN}' | cat"), "SystemExit: 3"),
    ],
)
def test_what_did_not_train_is_red_and_says_why(
    words: tuple[str, ...], reason: str, repository: Repository
) -> None:
    done = repository.run("--json", "--run-dir", "runs/a", "--", *words)

    found = json.loads(done.stdout)
    assert (done.returncode, found["exit_code"], found["outcome"]["status"]) == (1, 1, "failed")
    assert reason in found["outcome"]["reason"]
    assert not parts_of(found)["trained"]["passed"]


def wait_for_step(repository: Repository, run: str) -> None:
    """Wait until a checkpoint was saved, which is that of step 2."""
    log = repository.folder / "runs" / run / "logs" / "node-0.log"
    until = time.monotonic() + 120
    while not (log.exists() and '"step": 3' in log.read_text()) and time.monotonic() < until:
        time.sleep(0.1)


@pytest.mark.process
def test_a_program_that_is_stopped_is_stored_and_resumes(repository: Repository) -> None:
    """Its trainer handles SIGTERM only. After Ctrl-C the exit code is 130, with its checkpoint of before."""
    failures = []
    for number in (signal.SIGTERM, signal.SIGINT):
        words = ["--run-dir", f"runs/{number.name}", "--", sys.executable, "train.py", "--pause", "0.3"]
        words += ["--steps", "12", "--output_dir", f"out-{number.name}"]
        process = repository.start(*words, start_new_session=True)
        wait_for_step(repository, number.name)
        process.send_signal(number)
        _, error = process.communicate(timeout=120)
        record = repository.folder / "runs" / number.name / "run.json"
        outcome = json.loads(record.read_text())["outcome"]
        code = 130 if number == signal.SIGINT else 75
        found = process.returncode, outcome["status"], outcome["exit_code"], number.name in outcome["reason"]
        if found != (code, "stopped", code, True) or "artifacts:" not in error:
            failures.append((number.name, found, outcome, error))
    assert failures == []

    command = ("--run-dir", "runs/SIGINT", "--", sys.executable, "train.py", "--pause", "0.3")
    assert repository.run(*command, "--steps", "12", "--output_dir", "out-SIGINT").returncode in (0, 1)
    assert repository.steps("SIGINT") == list(range(1, 13))


@pytest.mark.process
def test_a_closed_terminal_ends_neither_the_save_nor_the_store(repository: Repository) -> None:
    child, terminal = pty.fork()
    if not child:
        os.chdir(repository.folder)
        program = (sys.executable, "train.py", "--pause", "0.3", "--steps", "200")
        words = ("-m", "trainyard", "run", "--run-dir", "runs/a", "--", *program)
        os.execv(sys.executable, [sys.executable, *words])
    drained = threading.Thread(target=drain, args=(terminal,), daemon=True)
    drained.start()
    wait_for_step(repository, "a")
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 75
    outcome = json.loads((repository.folder / "runs/a/run.json").read_text())["outcome"]
    assert (outcome["status"], "SIGHUP" in outcome["reason"]) == ("stopped", True)
    assert list((repository.folder / "trainyard-store").rglob("*manifest.json"))


def drain(terminal: int) -> None:
    """Read a terminal until it is closed; a program waits when nobody reads."""
    with suppress(OSError):
        while os.read(terminal, 1 << 16):
            pass


def test_the_deadline_stops_it(repository: Repository) -> None:
    command = ("--deadline", "4s", "--run-dir", "runs/a")
    done = repository.run(*command, "--", sys.executable, "train.py", "--pause", "0.5", "--steps", "200")

    assert done.returncode == 75, done.stderr


def test_inputs_that_change_while_it_runs_are_reported(repository: Repository) -> None:
    script = (
        "import pathlib; pathlib.Path('requirements.txt').write_text('numpy==1.0.0'); "
        "pathlib.Path('data/tokens.txt').write_text('other'); "
        "import torch; given = torch.ones(1, requires_grad=True); torch.optim.SGD([given]).step(); "
        f"pathlib.Path('train.py').write_text({COPIED!r}); torch.optim.SGD([given]).step(); import train"
    )

    done = repository.run("--json", "--run-dir", "runs/a", "--", sys.executable, "-c", script)

    part = parts_of(json.loads(done.stdout))["repeatable"]
    assert done.returncode == 1
    assert part["evidence"] == (
        "the lock requirements.txt and the data and the code train.py changed while the program ran"
    )


# Trains, and upgrades a package while it does, once it is known which version was imported.
UPGRADED = """
import pathlib, sys, time
sys.path.append(".venv/site-packages")
import tiny, torch

optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)])
optimizer.step()
until, run = time.monotonic() + 60, pathlib.Path(sys.argv[1])
if "upgrade" in sys.argv:
    while "other_versions" not in run.read_text() and time.monotonic() < until:
        time.sleep(0.6)
        optimizer.step()
    info = pathlib.Path(".venv/site-packages/tiny-1.0.dist-info")
    info = info.rename(info.with_name("tiny-2.0.dist-info"))
    (info / "METADATA").write_text("Metadata-Version: 2.1\\nName: tiny\\nVersion: 2.0\\n")
"""


def test_a_package_of_another_version_than_the_lock_pins_is_red(repository: Repository) -> None:
    """The version at its import counts: the last program upgrades it while it trains, as its owner may."""
    packages = repository.folder / ".venv" / "site-packages"
    info = packages / "tiny-1.0.dist-info"
    info.mkdir(parents=True)
    (packages / "tiny.py").write_text("")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
    (info / "RECORD").write_text("tiny.py,,\n")
    (repository.folder / ".gitignore").write_text(".venv\n")
    (repository.folder / "train.py").write_text(UPGRADED)
    for name, version, upgrades in (("a", "1.0", False), ("b", "2.0", False), ("c", "2.0", True)):
        (repository.folder / "requirements.txt").write_text(f"tiny=={version}\n")
        repository.git("add", "-A")
        repository.git("commit", "-q", "--allow-empty", "-m", "Pin")
        words = (sys.executable, "train.py", f"runs/{name}/run.json", *["upgrade"] * upgrades)
        done = repository.run("--json", "--run-dir", f"runs/{name}", "--", *words)

        part = parts_of(json.loads(done.stdout))["repeatable"]
        fact = "imported with another version than its lock pins: tiny 1.0, not 2.0"
        assert (part["passed"], part["evidence"] == fact) == (version == "1.0", version == "2.0"), (
            name,
            part,
        )
    assert (packages / "tiny-2.0.dist-info").exists()


def test_a_missing_fact_is_named_with_what_adds_it(repository: Repository) -> None:
    repository.git("rm", "-q", "requirements.txt")
    repository.git("commit", "-q", "-m", "Remove the lock")

    part = parts_of(repository.proven())["repeatable"]

    assert part["evidence"] == "not on record: lock"
    assert "run.json" not in part["fix"]
    assert "trainyard init program" in part["fix"]


def test_checkpoints_of_another_run_in_the_same_folder_do_not_count(repository: Repository) -> None:
    old = subprocess.run([sys.executable, "train.py", "--steps", "8"], cwd=repository.folder, check=False)
    assert old.returncode == 0
    time.sleep(1.5)

    done = repository.run("--json", "--run-dir", "runs/a", "--", sys.executable, "train.py")

    found = json.loads(done.stdout)
    assert found["exit_code"] == 0
    assert found["outcome"]["checkpoint"]["step"] == STEPS
    assert repository.records("events")[0]["event"] == "started"
    assert "out/checkpoint-8 is of an earlier run" in done.stderr
    assert "Slack" not in done.stdout + done.stderr and "slack" not in done.stderr
