"""The machines of a workflow: the check of the environment before a training, and the watchdog of runners."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import warm_start
from tests.cases import each_case
from tests.scripts.conftest import ROOT

from trainyard.commands import step_environment, step_watch_runners
from trainyard.errors import ServiceError
from trainyard.gateways import local_machine, slack
from trainyard.github import runner_watchdog

SMOKE = str(ROOT / "configs" / "smoke.yaml")


def check(*arguments: str, path: Path, summary: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": f"{path}:{os.environ['PATH']}"}
    environment.pop("GITHUB_STEP_SUMMARY", None)  # the job of the tests reports no refusal of these checks
    environment |= {"GITHUB_STEP_SUMMARY": str(summary)} if summary else {}
    line = [sys.executable, "-m", "trainyard", "step", "environment", "--config", SMOKE, *arguments]
    done = warm_start.run(line, timeout=120, env=environment, cwd=ROOT)
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture
def driver(tmp_path: Path) -> Path:
    """A folder whose `nvidia-smi` finds no driver, so that these tests mean the same on a GPU machine."""
    return say(
        tmp_path, "echo 'NVIDIA-SMI has failed because it could not communicate with the driver'; exit 9"
    )


def say(folder: Path, body: str) -> Path:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    return folder


def test_this_environment_is_fit_to_train_on_the_cpu(driver: Path, tmp_path: Path) -> None:
    on_cpu = ("--set", "model.device=cpu", "--run-dir", str(tmp_path / "run"))
    done = check(*on_cpu, path=driver)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "environment: Python 3." in done.stderr
    assert "no GPU (training on CPU)" in done.stderr
    assert done.stderr.rstrip().endswith("[ok]")
    answer = json.loads(check(*on_cpu, "--json", path=driver).stdout)
    checks = [finding["check"] for finding in answer["findings"]]
    assert list(dict.fromkeys(checks)) == ["python", "packages", "torch", "gpu", "memory", "disk"]
    assert {answer["verdict"], *(finding["verdict"] for finding in answer["findings"])} == {"ok"}
    assert not (tmp_path / "run").exists()


def test_everything_that_is_wrong_is_reported_at_once(driver: Path, tmp_path: Path) -> None:
    lock, summary = tmp_path / "lock.txt", tmp_path / "summary.md"
    lock.write_text("torch==2.1.0\nno-such-package==1.0\n")
    wide = ("--set", "checkpointing.keep_last=1000000000", "--set", "model.device=cuda:0")
    done = check(*wide, "--lock", str(lock), path=driver, summary=summary)
    assert done.returncode == 1
    assert "no-such-package 1.0 missing" in done.stderr and "instead of 2.1.0" in done.stderr
    assert "gpu: nvidia-smi failed (exit code 9): NVIDIA-SMI has failed" in done.stderr
    assert "disk: " in done.stderr and "  fix: " in done.stderr
    assert "3 checks failed. Nothing was started." in done.stderr
    assert summary.read_text().startswith("### ❌ Not started: ")
    for words, named in ((("--lock", "/no/lock.txt"), "/no/lock.txt"), (("--set", "a.b=5"), "a.b")):
        refused = check(*words, path=driver)
        assert refused.returncode == 2 and named in refused.stderr


@pytest.mark.parametrize(("recipe", "is_job"), [("pretrain", True), ("command", False)])
def test_another_process_on_the_gpu_is_named_and_refuses_nothing(
    tmp_path: Path, recipe: str, is_job: bool
) -> None:
    """A process that sleeps stands for one that computes; the answers are in the form of a real H200."""
    job = {"RUNNER_NAME": "gpu-1", "GITHUB_RUN_ID": "17", "TRAINYARD_RUN_ID": "gh-17"}
    other = subprocess.Popen(["sleep", "300"], env={"PATH": os.environ["PATH"], **(job if is_job else {})})
    try:
        processes = f"echo {other.pid}, sleep, 1978, GPU-1; echo 1, another, [N/A], GPU-1"
        gpu = f"cat '{ROOT}/tests/fixtures/nvidia/h200-580.159.04/q.xml'"
        path = say(tmp_path, f'case "$1" in *compute-apps*) {processes} ;; *) {gpu} ;; esac')
        config = tmp_path / "config.yaml"
        config.write_text("recipe: command\nmodel: {name: a}\nprogram: {command: [sleep, '1']}\n")
        given = [] if recipe == "pretrain" else ["--config", str(config)]
        done = check(*given, "--run-dir", str(tmp_path / "run"), "--json", path=path)
    finally:
        other.kill()
        other.wait()
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    (found,) = [each["found"] for each in answer["findings"] if each["check"] == "gpu processes"]
    assert answer["verdict"] == "degraded"
    owner = "of run gh-17, GitHub run 17, runner gpu-1" if is_job else "of user "
    assert f"pid {other.pid} (sleep 300), 2.1 GB, {owner}" in found
    assert "pid 1 (another), unknown memory, of another container or user" in found
    assert "gpu processes" in done.stderr


@pytest.mark.parametrize("in_actions", ["true", "false"])
@pytest.mark.parametrize(("place", "is_kept"), [("runs/gh-1", True), ("my_runs", False), ("/mnt/runs", True)])
def test_a_run_directory_that_the_next_job_deletes_is_refused(
    monkeypatch: pytest.MonkeyPatch, place: str, is_kept: bool, in_actions: str
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", in_actions)
    findings = list(step_environment.run_directory_findings(ROOT / place))
    expected = [] if is_kept or in_actions == "false" else ["run directory"]
    assert [each.subject for each in findings if each.severity == "error"] == expected


@each_case("kept", [False, True])
@each_case("store", ["s3://ml-runs", "file:///srv/store", ""])
@each_case("network", [False, True])
@each_case(
    ("machine", "variables"),
    [
        ("a machine of GitHub", {"RUNNER_ENVIRONMENT": "github-hosted"}),
        ("a pod", {"RUNNER_ENVIRONMENT": "self-hosted", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}),
        ("an ephemeral runner", {"RUNNER_ENVIRONMENT": "self-hosted"}),
        ("", {"RUNNER_ENVIRONMENT": "self-hosted"}),
    ],
)
def test_a_store_that_goes_with_its_machine_is_refused_before_training(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    machine: str,
    variables: dict[str, str],
    network: bool,
    store: str,
    kept: bool,
) -> None:
    """GitHub destroys its own machine; another may have a network mount, or a volume that somebody names."""
    runner = tmp_path / "runner"
    (runner / "bin" / "Runner.Listener").mkdir(parents=True)
    is_ephemeral = str(machine == "an ephemeral runner").lower()
    (runner / ".runner").write_text(f'\ufeff{{"agentName": "x", "ephemeral": {is_ephemeral}}}', "utf-8")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    place = {"GITHUB_ACTIONS": "true", "RUNNER_WORKSPACE": str(runner / "_work" / "lab"), **variables}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(local_machine, "is_on_network", lambda _: network)
    found = [each.subject for each in step_environment.job_findings(tmp_path, store, is_kept=kept)]
    is_safe = network and machine != "a machine of GitHub"
    is_lost = bool(machine) and store.startswith("file:") and not kept and not is_safe
    assert found == (["store"] if is_lost else [])


@each_case("minutes", ["355", "360", "361", ""])
@each_case("machine", ["self-hosted", "github-hosted"])
def test_a_machine_of_github_that_ends_before_the_job_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: str, minutes: str
) -> None:
    for name, value in {"RUNNER_ENVIRONMENT": machine, "JOB_MINUTES": minutes}.items():
        monkeypatch.setenv(name, value)
    found = [each.subject for each in step_environment.job_findings(tmp_path, "s3://x", is_kept=False)]
    assert found == (["time limit"] if (machine, minutes) == ("github-hosted", "361") else [])


@each_case(
    ("mounts", "is_network"),
    [
        ("/dev/sda / ext4 rw 0 0\n", False),
        ("overlay / overlay rw 0 0\n", False),
        ("/dev/sda / ext4 rw 0 0\nfs-1:/ {} nfs4 rw 0 0\n", True),
        ("/dev/sda / ext4 rw 0 0\ns3 {} fuse.mount-s3 rw 0 0\n", True),
        ("x / fuse.fuse-overlayfs rw 0 0\n", False),
        ("fs-1:/ / nfs4 rw 0 0\n/dev/sda {} xfs rw 0 0\n", False),
    ],
)
def test_the_file_system_of_another_machine_is_known_by_its_mount(
    tmp_path: Path, mounts: str, is_network: bool
) -> None:
    (folder := tmp_path / "a store").mkdir()
    named = str(tmp_path.resolve()).replace(" ", "\\040")
    (table := tmp_path / "mounts").write_text(mounts.format(named))
    assert local_machine.is_on_network(folder / "new", mounts=table) is is_network


LABELS = ["--labels", '["self-hosted","gpu"]']


class Repository:
    """GitHub with one runner that is offline."""

    def __init__(self) -> None:
        self.looks: list[str] = []
        """The runner's status at each poll; empty if it does not change."""
        self.changed: list[str] = []
        self.runners = [
            {"name": "gpu-1", "status": "offline", "labels": [{"name": "self-hosted"}, {"name": "gpu"}]}
        ]

    def pages(self, path: str, key: str = "", **query: Any) -> Iterator[Any]:
        if path == "/actions/runners" and self.looks:
            self.runners[0]["status"] = self.looks.pop(0)
        yield from self.runners if path == "/actions/runners" else []

    def get(self, path: str, **query: Any) -> Any:
        return {"id": 1, "sha": "same", "workflow_runs": []}

    def post(self, path: str, body: Any = None) -> Any:
        self.changed.append(path)


@pytest.fixture
def repository(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Repository:
    there = Repository()
    monkeypatch.setattr(step_watch_runners, "github_from", lambda **_: there)
    monkeypatch.setenv("RUNNERS_TOKEN", "t")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary"))
    monkeypatch.setenv("GITHUB_OUTPUT", str(tmp_path / "output"))
    return there


def test_each_look_that_finds_an_outage_is_red(
    repository: Repository, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for line in (["--dry-run"], ["--json"]):
        assert step_watch_runners.main([*LABELS, *line]) == 1
    told = capsys.readouterr()
    assert "::error title=An outage::GPU runner gpu-1 is offline" in told.err
    assert json.loads(told.out)["outages"][0]["key"] == "offline gpu-1"
    assert "GPU runner gpu-1 is offline" in (tmp_path / "output").read_text()

    repository.runners[0]["status"] = "online"
    (tmp_path / "summary").unlink()
    assert step_watch_runners.main(LABELS) == 0
    assert (tmp_path / "summary").read_text() == "- No outage.\n"


def test_a_runner_that_is_back_at_the_second_look_is_no_outage(repository: Repository) -> None:
    repository.looks = ["offline", "online"]
    assert step_watch_runners.main([*LABELS, "--again", "0.01"]) == 0
    assert repository.looks == []
    repository.looks = ["offline", "offline"]
    assert step_watch_runners.main([*LABELS, "--again", "0.01"]) == 1


def test_without_labels_no_runner_is_looked_after_and_what_died_goes_on(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    dead = runner_watchdog.DeadRun(7, "https://x/7", 1)
    monkeypatch.setattr(runner_watchdog, "find_dead_runs", lambda *_, **__: [dead])
    assert step_watch_runners.main(["--labels", ""]) == 0
    assert repository.changed == ["/actions/runs/7/rerun-failed-jobs"]
    assert "your own runners are not watched" in capsys.readouterr().err


def test_slack_is_told_in_one_message_and_its_trouble_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sent: list[str] = []

    def post(text: str, blocks: Any) -> str:
        sent.append(text)
        return "posted"

    monkeypatch.setattr(slack, "post", post)
    assert step_watch_runners.main(["--tell", "gpu-1 is <offline>.\n\nanother"]) == 0
    assert sent == ["❌ gpu-1 is &lt;offline&gt;.\n❌ another"]

    def refuse(text: str, blocks: Any) -> None:
        raise ServiceError("channel_not_found")

    monkeypatch.setattr(slack, "post", refuse)
    assert step_watch_runners.main(["--tell", "x"]) == 0
    assert "no message was sent: channel_not_found" in capsys.readouterr().err


def test_hosted_jobs_call_it_without_any_package() -> None:
    """These jobs take seconds, and install nothing of the lock. Wrong usage ends the command here."""
    environment = {"PYTHONPATH": str(ROOT / "src")}
    for words in (["watch-runners", "--no-such"], ["continue", "--no-such"]):
        line = [sys.executable, "-S", "-m", "trainyard", "step", *words]
        done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=60)
        assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
        assert "--no-such" in done.stderr
