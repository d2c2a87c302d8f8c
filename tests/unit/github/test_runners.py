"""Runners: the command that sets one up, outages, and a round of the watchdog with a GitHub in memory."""

import hashlib
import os
import platform
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from trainyard.errors import ServiceError
from trainyard.gateways.github_api import GitHub
from trainyard.github import runner_watchdog
from trainyard.github.runner_command import MACHINES, runner_command
from trainyard.github.runners import Job, Runner, judge_jobs, judge_runners

GPU = frozenset({"self-hosted", "gpu"})
NOW = 1_800_000_000.0
MINUTE = 60.0
BOX = Runner("gpu-1", online=True, busy=False, labels=GPU | {"Linux"})
AWAY = Runner("gpu-1", online=False, busy=False, labels=GPU)
BUSY = Runner("gpu-1", online=True, busy=True, labels=GPU)


def job(minutes: float, *, running: bool = False, labels: frozenset[str] = GPU, run: int = 7) -> Job:
    return Job(
        run, "Train and prove", running, labels, NOW - minutes * MINUTE, f"https://x/{run}", trains=True
    )


def outage_keys(*jobs: Job, runners: tuple[Runner, ...] | None = (BOX,)) -> list[str]:
    return [outage.key for outage in judge_runners(runners, jobs, GPU, now=NOW)]


def test_an_offline_runner_is_named_whether_a_job_waits_or_not() -> None:
    assert outage_keys(runners=(AWAY,)) == ["offline gpu-1"]
    assert outage_keys(job(30), runners=(AWAY,)) == ["offline gpu-1"]
    [outage] = judge_runners((Runner("gpu-1", online=False, busy=True, labels=GPU),), (), GPU, now=NOW)
    assert "went away in the middle of a job" in outage.title
    assert "svc.sh" in outage.next_step


def test_a_runner_that_takes_no_job_is_stuck_after_five_minutes() -> None:
    assert outage_keys(job(6)) == ["stuck gpu-1"]
    assert outage_keys(job(4)) == []
    assert outage_keys(job(6), runners=(BUSY,)) == []


def test_a_job_that_waits_for_its_turn_is_no_outage() -> None:
    assert outage_keys(job(300), job(200, running=True, run=6)) == []


def test_a_missing_runner_is_named_by_its_labels() -> None:
    other = Runner("cpu-1", online=False, busy=False, labels=frozenset({"self-hosted"}))
    assert outage_keys(job(6), runners=(other,)) == ["missing"]
    assert outage_keys(runners=(other,)) == []
    [outage] = judge_runners((other,), [job(6)], GPU, now=NOW)
    assert outage.title.startswith("No runner registered in this repository has the labels gpu, self-hosted;")


def test_labels_ignore_case() -> None:
    capitals = frozenset({"Self-Hosted", "GPU"})
    box = Runner("gpu-1", online=False, busy=False, labels=capitals)
    assert outage_keys(runners=(box,)) == ["offline gpu-1"]
    assert outage_keys(job(6, labels=capitals), runners=None) == ["waiting"]
    assert [o.key for o in judge_runners(None, [job(6)], capitals, now=NOW)] == ["waiting"]
    assert len(list(judge_jobs([job(500, running=True, labels=capitals)], GPU, now=NOW))) == 1


def test_without_permission_to_list_runners_the_jobs_show_an_outage() -> None:
    assert outage_keys(job(6), runners=None) == ["waiting"]
    assert outage_keys(job(6), job(60, running=True), runners=None) == []
    assert outage_keys(runners=None) == []


def test_a_job_beyond_its_limit_is_an_outage_with_the_command_that_ends_it() -> None:
    [outage] = judge_jobs([job(496, running=True)], GPU, now=NOW)
    assert "has run for 496 minutes" in outage.title and outage.next_step.startswith("gh run cancel 7;")


def test_jobs_waiting_for_your_own_runner_and_foreign_jobs_are_left_alone() -> None:
    hosted = frozenset({"ubuntu-24.04"})
    left = [
        job(600),
        job(480, running=True),
        job(600, running=True, labels=hosted),
        replace(job(600, running=True), trains=False),
    ]
    assert list(judge_jobs(left, GPU, now=NOW)) == []


def test_without_labels_no_job_is_watched() -> None:
    none: frozenset[str] = frozenset()
    hosted = job(600, running=True, labels=frozenset({"ubuntu-24.04"}))
    away = Runner("gpu-1", online=False, busy=False, labels=GPU)
    assert judge_runners([away], [job(60), hosted], none, now=NOW) == []
    assert judge_runners(None, [job(60), hosted], none, now=NOW) == []
    assert list(judge_jobs([job(600, running=True), hosted], none, now=NOW)) == []


TOKEN = "ATOKEN-of-an-hour"
PAGE = "https://github.com/me/lab"
Run = Callable[..., subprocess.CompletedProcess[str]]
STAND_INS = {
    "sudo": """
while [ $# -gt 0 ]; do case $1 in -u) shift 2 ;; --*) shift ;; *) break ;; esac; done
exec "$@"
""",
    "id": "test -e {root}/home",
    "useradd": 'mkdir -p {root}/home; echo "useradd $*" >> {root}/notes',
    "getent": 'echo "runner:x:1:1::{root}/home:/bin/bash"',
    "install": 'for last; do :; done; mkdir -p "$last"; echo "install $*" >> {root}/notes',
    "nvidia-smi": "echo {driver}",
}
CONFIG = """#!/bin/sh
echo "config $* with ${ACTIONS_RUNNER_INPUT_TOKEN}" >> "$NOTES"
cat > /dev/null  # a program that reads its input must not eat the rest of the command
test -z "$REFUSE" || exit 3
touch .runner
"""
SERVICE = """#!/bin/sh
echo "svc $* ${ACTIONS_RUNNER_INPUT_TOKEN}" >> "$NOTES"
test "$1" != install || touch .service
"""


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    folder = tmp_path / "runner"
    folder.mkdir()
    for name, text in (("config.sh", CONFIG), ("svc.sh", SERVICE)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    path = tmp_path / "runner.tar.gz"
    with tarfile.open(path, "w:gz") as file:
        for each in folder.iterdir():
            file.add(each, each.name)
    return path


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def paste(command: str, driver: str = "580.95.05", **variables: str) -> subprocess.CompletedProcess[str]:
        programs = tmp_path / "bin"
        programs.mkdir(exist_ok=True)
        for name, text in STAND_INS.items():
            body = text.replace("{root}", str(tmp_path)).replace("{driver}", driver)
            (programs / name).write_text(f"#!/bin/bash\n{body}\n")
            (programs / name).chmod(0o755)
        environment = {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "NOTES": str(tmp_path / "notes"),
            "REFUSE": "",
        }
        return subprocess.run(
            ["bash", "-c", command], env=environment | variables, capture_output=True, text=True, timeout=60
        )

    return paste


def command_of(archive: Path, *folders: str, checksum: str = "", token: str = TOKEN) -> str:
    digest = checksum or hashlib.sha256(archive.read_bytes()).hexdigest()
    labels = ("self-hosted", "gpu", "h100")
    downloads = dict.fromkeys(MACHINES.values(), (archive.as_uri(), digest))
    return runner_command(PAGE, labels, downloads, token=token, folders=folders)


def notes(tmp_path: Path) -> list[str]:
    return (tmp_path / "notes").read_text().splitlines()


def test_the_first_run_registers_and_a_second_only_starts_it(run: Run, archive: Path, tmp_path: Path) -> None:
    store = str(tmp_path / "a store")
    command = command_of(archive, store)
    done = run(command)
    assert (done.returncode, done.stderr) == (0, "")
    folder = f"{tmp_path}/home/actions-runner-me-lab"
    name = platform.node()
    assert notes(tmp_path) == [
        "useradd --create-home --shell /bin/bash runner",
        f"install -d -o runner {store}",
        f"install -d -o runner {folder}",
        f"config --unattended --url {PAGE} --name {name} --labels gpu,h100 with {TOKEN}",
        "svc install runner ",
        "svc start ",
    ]
    assert not (Path(folder) / "runner.tar.gz").exists()
    again = run(command)
    assert (again.returncode, notes(tmp_path)[6:]) == (0, [f"install -d -o runner {folder}", "svc start "])


def test_a_download_with_a_wrong_checksum_is_not_unpacked(run: Run, archive: Path, tmp_path: Path) -> None:
    done = run(command_of(archive, checksum="0" * 64))
    assert done.returncode != 0
    assert "did NOT match" in done.stderr
    assert [line for line in notes(tmp_path) if line.startswith(("config", "svc"))] == []
    assert run(command_of(archive)).returncode == 0, "the next one begins anew"


def test_a_refused_registration_stops_and_a_new_token_continues(
    run: Run, archive: Path, tmp_path: Path
) -> None:
    assert run(command_of(archive), REFUSE="yes").returncode == 3
    assert [line for line in notes(tmp_path) if line.startswith("svc")] == []
    assert run(command_of(archive, token="ANEW")).returncode == 0
    assert notes(tmp_path)[-3].endswith("with ANEW")


def test_an_old_driver_is_reported_with_the_install_command(run: Run, archive: Path) -> None:
    for driver, words in (
        ("580.95.05", ""),
        ("570.86.15", "is 570.86.15"),
        ("ERR!", "is ERR!"),
        ("", "is missing"),
    ):
        done = run(command_of(archive), driver=driver)
        assert done.returncode == 0, "a machine without a GPU may be a runner too"
        assert words in done.stderr
        assert ("sudo apt-get install -y nvidia-driver-580-server && sudo reboot" in done.stderr) is bool(
            words
        )


def test_values_in_the_command_are_quoted(run: Run, archive: Path, tmp_path: Path) -> None:
    evil = "/srv/$(touch pwned)/`touch pwned`/it's"
    folder = str(tmp_path) + evil
    done = run(command_of(archive, folder, token="A'$(touch pwned)"))
    assert done.returncode == 0, done.stderr
    assert f"install -d -o runner {folder}" in notes(tmp_path)
    assert not [path for path in tmp_path.rglob("pwned") if path.is_file()]


def test_shellcheck_finds_nothing_in_it(archive: Path, tmp_path: Path) -> None:
    lines = command_of(archive, "/mnt/storage/store").splitlines()
    script = tmp_path / "register.sh"
    script.write_text("\n".join(["#!/bin/bash", *lines[1:-1]]) + "\n")
    program = Path(sys.executable).parent / "shellcheck"
    done = subprocess.run([program, script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")


WORKFLOW = "training_ci.yml"
OWN = {"repository": {"id": 1}, "head_repository": {"id": 1}}
LOST = "The self-hosted runner: gpu-1 lost communication with the server. Verify the machine is running."


def at(minutes_ago: float) -> str:
    return datetime.fromtimestamp(NOW - 60 * minutes_ago, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass
class Memory(GitHub):
    """The part of GitHub that a round uses; records every change."""

    lists: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    runs: list[dict[str, Any]] = field(default_factory=list)
    changed: list[tuple[str, Any]] = field(default_factory=list)
    refuses: bool = False

    def pages(self, path: str, key: str = "", **query: Any) -> Iterator[Any]:
        status = f" {query['status']}" if "status" in query else ""
        yield from self.lists.get(path + status, [])

    def get(self, path: str, **query: Any) -> Any:
        return {"workflow_runs": self.runs} if path.endswith("/runs") else {"id": 4}

    def post(self, path: str, body: Any = None) -> Any:
        if self.refuses:
            raise ServiceError("409")
        self.changed.append((path, body))


def test_a_poll_gathers_runners_and_the_jobs_that_wait_or_run() -> None:
    waits = {"status": "queued", "name": "Train and prove", "created_at": at(20), "html_url": "https://x/7"}
    runs = {"status": "in_progress", "name": "lint", "started_at": at(1), "html_url": "https://x/7"}
    github = Memory(
        {
            "/actions/runs queued": [{"id": 7, "created_at": at(30)}],
            "/actions/runs/7/jobs": [
                {**waits, "labels": ["self-hosted", "gpu"]},
                {**runs, "labels": ["ubuntu-24.04"]},
                {"status": "completed", "name": "plan"},
            ],
            "/actions/runners": [
                {"name": "gpu-1", "status": "online", "busy": False, "labels": [{"name": n} for n in GPU]}
            ],
        }
    )
    assert [o.key for o in runner_watchdog.find_outages(github, github, WORKFLOW, GPU, now=NOW)] == [
        "stuck gpu-1"
    ]
    seen = runner_watchdog.find_outages(github, None, WORKFLOW, GPU, now=NOW)
    assert [(o.key, "20 minutes" in o.title) for o in seen] == [("waiting", True)]


def dead_run(**changes: Any) -> Memory:
    run = {"id": 7, "status": "completed", "conclusion": "failure", "updated_at": at(5)}
    run |= {"display_title": "Change the loss", "html_url": "https://x/7", **OWN, **changes}
    job = {"id": 70, "name": "Train and prove", "status": "completed", "conclusion": "failure"}
    lists: dict[str, list[dict[str, Any]]] = {
        "/actions/runs/7/jobs": [{"id": 69, "name": "Check and plan", "status": "completed"}, job],
        "/check-runs/70/annotations": [{"message": "Process completed."}, {"message": LOST}],
    }
    return Memory(lists, [run])


def test_a_run_whose_runner_died_is_resumed_by_its_next_attempt() -> None:
    """It has the commit, the workflow file and the plan of the first attempt, whatever the branch has now."""
    github = dead_run()
    found = runner_watchdog.find_dead_runs(github, WORKFLOW, now=NOW)
    assert runner_watchdog.resume_all(github, found, dry_run=True) == (found, [])
    assert github.changed == []
    assert runner_watchdog.resume_all(github, found, dry_run=False) == (found, [])
    assert [path for path, _ in github.changed] == ["/actions/runs/7/rerun-failed-jobs"]
    github.refuses = True
    resumed, [outage] = runner_watchdog.resume_all(github, found, dry_run=False)
    assert (resumed, outage.key) == ([], "resume 7")
    assert "409" in outage.next_step


@pytest.mark.parametrize(
    "changes",
    [
        {"conclusion": "success"},
        {"status": "in_progress"},
        {"updated_at": at(25 * 60)},
        {"head_repository": {"id": 2}},
        {"head_repository": None},
    ],
)
def test_successful_running_and_old_runs_and_those_of_a_fork_are_not_resumed(changes: dict[str, str]) -> None:
    assert runner_watchdog.find_dead_runs(dead_run(**changes), "training_ci.yml", now=NOW) == []


def test_a_run_that_failed_or_was_cancelled_is_not_resumed() -> None:
    github = dead_run(conclusion="cancelled")
    github.lists["/check-runs/70/annotations"] = [{"message": "The operation was canceled."}]
    assert runner_watchdog.find_dead_runs(github, "training_ci.yml", now=NOW) == []
    github = dead_run()
    github.lists["/actions/runs/7/jobs"].pop()
    assert runner_watchdog.find_dead_runs(github, "training_ci.yml", now=NOW) == []


@pytest.mark.parametrize(
    ("by", "resumed"), [("octocat", 0), ("github-actions-fan", 0), ("github-actions[bot]", 1)]
)
@pytest.mark.parametrize("word", ["canceled", "Cancelled"])
def test_a_cancelled_run_is_not_resumed_even_if_its_runner_ended(by: str, resumed: int, word: str) -> None:
    github = dead_run(conclusion="cancelled")
    github.lists["/check-runs/70/annotations"].append({"message": f"The run was {word} by @{by}."})
    assert len(runner_watchdog.find_dead_runs(github, "training_ci.yml", now=NOW)) == resumed


def test_a_run_that_dies_repeatedly_is_given_up_and_named() -> None:
    github = dead_run(run_attempt=runner_watchdog.MOST_ATTEMPTS)
    [dead] = runner_watchdog.find_dead_runs(github, WORKFLOW, now=NOW)
    assert runner_watchdog.resume_all(github, [dead], dry_run=False) == ([], [])
    outage = runner_watchdog.report_unresumed(dead)
    assert (outage.key, outage.next_step) == ("dead 7", "gh run rerun 7")
    assert "lost its runner in 3 attempts" in outage.title


def test_runners_of_an_organisation_are_not_listed_and_judged_by_the_jobs_that_wait() -> None:
    class Owned(Memory):
        owner = ""

        def get(self, path: str, **query: Any) -> Any:
            return super().get(path, **query) if path else {"owner": {"type": self.owner}}

    waits = {"status": "queued", "name": "Train and prove", "created_at": at(20), "html_url": "https://x/7"}
    github = Owned(
        {
            "/actions/runs queued": [{"id": 7, "created_at": at(30)}],
            "/actions/runs/7/jobs": [{**waits, "labels": sorted(GPU)}],
            "/actions/runners": [],
        }
    )
    for github.owner, expected in (("Organization", "waiting"), ("User", "missing")):
        found = runner_watchdog.find_outages(github, github, WORKFLOW, GPU, now=NOW)
        assert [each.key for each in found] == [expected]
