"""A stage for the shipped workflows: a copy of the working tree, act in host mode, an S3 server, a Slack.

Nothing leaves the loopback interface. Third-party actions are replaced by stand-ins that record their inputs;
everything else is as shipped, except for keys that act 0.2.89 cannot read (see `lowered`).
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.answering import Slack, answering, answering_slack
from tests.git_repository import git
from tests.integration.conftest import (  # noqa: F401 - fixtures of the tests here
    ACCESS_KEY,
    SECRET_KEY,
    Endpoint,
    role_store,
    seaweedfs,
)
from tests.waiting import wait_for

ROOT = Path(__file__).resolve().parents[3]
TOOLS = Path(sys.executable).parent
BUCKET = "ml-runs"
KEY, SECRET = ACCESS_KEY, SECRET_KEY
ACT_SECONDS = 420
OURS = f"stage/trainyard@{'0' * 40}"
"""This repository at the commit of the called workflow, which `$/` means at GitHub."""
LABELS = '["self-hosted","gpu"]'
TINY = Path(__file__).parent / "tiny.yaml"

STAND_INS = {path.parent.name: path for path in (Path(__file__).parent / "stand_ins").glob("*/action.yml")}


@dataclass(frozen=True)
class Played:
    """The result of a workflow run."""

    exit_code: int
    log: str
    steps: dict[str, str]
    """Name of each step that ran -> success or failure."""
    summary: str
    """The text of the job summary."""
    messages: list[str]
    """The messages that Slack received, each as its JSON text."""
    dispatched: list[dict[str, Any]]
    """The changes requested of GitHub's API: the body of each, and its `path`."""
    record: Path
    """A folder with the records of the stand-ins."""
    run_directory: Path

    @property
    def green(self) -> bool:
        return self.exit_code == 0


@dataclass
class GitHub:
    """A local server instead of GitHub's API."""

    url: str
    asked: list[dict[str, Any]] = field(default_factory=list)
    """The body of each change, and its `path`."""
    answers: dict[str, Any] = field(default_factory=dict)
    """A part of an address -> the answer to a read of it; every other answer is empty."""


@dataclass(frozen=True)
class Bucket:
    """A real S3 server with one bucket."""

    endpoint: str
    client: Any

    def keys(self, prefix: str = "") -> list[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        return [item["Key"] for page in pages for item in page.get("Contents", ())]


def need(program: str) -> None:
    """Skip where a program of the development lock is not published for this platform."""
    if not (TOOLS / program).is_file():
        pytest.skip(f"{program} is not installed: the development lock has it for Linux only")


@pytest.fixture(scope="session")
def bucket(seaweedfs: Endpoint) -> Bucket:  # noqa: F811 - the fixture
    seaweedfs.client.create_bucket(Bucket=BUCKET)
    return Bucket(seaweedfs.url, seaweedfs.client)


@pytest.fixture(scope="session")
def slack() -> Iterator[Slack]:
    with answering_slack() as server:
        yield server


@pytest.fixture(scope="session")
def github() -> Iterator[GitHub]:
    taken = [{"id": 5, "name": "train / Train and prove", "status": "in_progress"}]
    there = GitHub("", answers={"/jobs?": {"jobs": taken}})

    def answer(_method: str, path: str, body: Any, _headers: object) -> tuple[int, Any]:
        if body:
            there.asked.append({"path": path, **body})
            return 200, {"html_url": "https://github.com/stage/stage/actions/runs/99"}
        place, _, query = path.partition("?")
        found = [each for end, each in there.answers.items() if f"{place}?{query}".find(end) > 0]
        return 200, found[0] if found else {}

    with answering(answer) as there.url:
        yield there


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The working tree as a repository with one commit, and a configuration small enough for a test."""
    copy = tmp_path_factory.mktemp("repository") / "trainyard"
    listed = git(ROOT, "ls-files", "--cached", "--others", "--exclude-standard", "-z").split("\0")
    for name in filter(None, listed):
        source, target = ROOT / name, copy / name
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
    folder = copy / ".github"
    for file in (copy / "action.yml", *folder.glob("*/*.yml"), *folder.glob("*/*/*.yml")):
        file.write_text(lowered(file.read_text()))
    # The files that Python has compiled, else each machine of a play compiles the product again.
    unfinished = shutil.ignore_patterns("*.pyc.*")
    for cache in (ROOT / "src").rglob("__pycache__"):
        shutil.copytree(cache, copy / cache.relative_to(ROOT), ignore=unfinished)
    # The environment that runs the tests; MAKEFLAGS=n keeps `make install` from installing it once more.
    (copy / ".venv").symlink_to(sys.prefix)
    (copy / ".uv").symlink_to(ROOT / ".uv")
    texts = tmp_path_factory.mktemp("texts")
    for part, module in (("train", subprocess), ("train", threading), ("validation", shutil)):
        (texts / part).mkdir(exist_ok=True)
        shutil.copy(str(module.__file__), texts / part)
    (copy / "configs" / "tiny.yaml").write_text(TINY.read_text().replace("TEXTS", str(texts)))
    (copy / "configs" / "wrong.yaml").write_text("extends: tiny.yaml\ntraining:\n  max_step: 3\n")
    git(copy, "init", "--quiet", "--initial-branch=main")
    commit(copy)
    return copy


def lowered(text: str) -> str:
    """The file without keys that act 0.2.89 cannot read, containers and a second poll, but with its schedule.

    What `$/` names is another repository for act, as it is for a caller.
    """
    text = text.replace("\n  # schedule:", "\n  schedule:")
    name, _, commit = OURS.partition("@")
    text = re.sub(r"uses: \$/(\S+)", rf"uses: {name}/\1@{commit}", text)
    text = re.sub(r"^ +container: \S.*\n", "", text, flags=re.M)
    text = re.sub(r"--again \d+", "--again 0", text)
    text = re.sub(r"(, )?(queue: max|deployment: false)(, )?(?=[^\n]*})", ", ", text).replace(",  }", " }")
    return re.sub(r"^ +(queue: max|deployment: false|artifact-metadata: write.*)\n", "", text, flags=re.M)


def commit(folder: Path) -> None:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "Set the stage")


@pytest.fixture(scope="session")
def release(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Path:
    """Trainyard's actions and workflows at one commit, with its environment, because a play installs nothing.

    act copies the repository for each use, so that it has nothing else.
    """
    copy = tmp_path_factory.mktemp("release") / "trainyard"
    shutil.copytree(repository / ".github", copy / ".github")
    shutil.copy(repository / "action.yml", copy)
    (copy / ".venv").symlink_to(sys.prefix)
    git(copy, "init", "--quiet", "--initial-branch=main")
    git(copy, "add", "--force", ".venv")
    commit(copy)
    return copy


@pytest.fixture(scope="session")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """For each third-party action, by the last part of its name, a repository that holds the stand-in."""
    folders = {}
    for name, action in STAND_INS.items():
        folder = tmp_path_factory.mktemp(name)
        shutil.copy(action, folder)
        git(folder, "init", "--quiet", "--initial-branch=main")
        commit(folder)
        folders[name] = folder
    return folders


@dataclass(frozen=True)
class Stage:
    """Plays one workflow run at a time."""

    repository: Path
    folder: Path
    stand_ins: dict[str, Path]
    slack: Slack
    github: GitHub
    path: str
    release: Path
    actions: dict[str, Path] = field(default_factory=dict)
    """Further actions, such as `owner/name@v1`, and the repository of each."""

    def play(
        self,
        event: str,
        *,
        inputs: dict[str, str] | None = None,
        variables: dict[str, str] | None = None,
        environment: dict[str, str] | None = None,
        payload: dict[str, Any] | None = None,
        workflow: str = "training_ci.yml",
        job: str = "train",
        cancelled_at_step: int | None = None,
        is_fresh: bool = False,
    ) -> Played:
        """Run a shipped workflow by `event` up to `job`, in a scratch home, and gather what it left.

        `is_fresh` plays a copy of the repository in which nobody has set a variable yet.
        """
        usual = {"TRAINYARD_RUNS_DIRECTORY": str(self.folder / "runs"), "TRAINYARD_RUNNER_LABELS": LABELS}
        usual |= {"TRAINYARD_FOLLOW": "off"}  # only some plays show that checkpoints are stored meanwhile
        runs = Path((variables or {}).get("TRAINYARD_RUNS_DIRECTORY", usual["TRAINYARD_RUNS_DIRECTORY"]))
        variables = {} if is_fresh else {**usual, **(variables or {})}
        runs.mkdir(exist_ok=True)  # a second attempt finds what the first one left
        played = tempfile.mkdtemp(prefix="play-", dir=self.folder)
        record, home = Path(played, "record"), Path(played, "home")
        record.mkdir()
        home.mkdir()
        self.slack.requests.clear()
        self.github.asked.clear()
        given = {"RECORD": str(record), "MAKEFLAGS": "n", "STAGE_KEY": KEY, "STAGE_SECRET": SECRET}
        given |= {"STAGE_REPOSITORY": str(self.repository), "GITHUB_API_URL": self.github.url}
        # The code that was checked out, not that which the environment was made for.
        given["PYTHONPATH"] = "src"
        given |= {"PATH": self.path, **(environment or {})}
        line = [str(TOOLS / "act"), event, "--json", "--no-cache-server"]
        line += words("-P", dict.fromkeys(("self-hosted", "ubuntu-24.04"), "-self-hosted"))
        hook = f"SLACK_WEBHOOK_URL={self.slack.url}/services/T0/B0/stage-webhook"
        line += ["-W", f".github/workflows/{workflow}", "-s", hook]
        line += ["-s", "GITHUB_TOKEN=stage-token", "-s", "TRAINYARD_RUNNERS_TOKEN=stage-list"]
        line += ["--job", job]  # and what it needs
        line += words("--env", given) + words("--input", inputs or {})
        if payload is None and event == "push":
            payload = {"ref": "refs/heads/main", "repository": {"default_branch": "main", "fork": False}}
        if payload is not None:
            Path(played, "event.json").write_text(json.dumps(payload))
            line += ["--eventpath", str(Path(played, "event.json"))]
        line += words("--var", variables)
        line += words("--local-repository", {pin: str(folder) for pin, folder in self.pinned().items()})
        scratch = {"PATH": self.path, "HOME": str(home), "XDG_CACHE_HOME": str(home / ".cache")}
        scratch["LANG"] = "C.UTF-8"
        with (
            Path(played, "log").open("w+") as log,
            Path(played, "errors").open("w+") as errors,
            subprocess.Popen(
                line, cwd=self.repository, env=scratch, stdout=log, stderr=errors, text=True
            ) as act,
        ):
            if cancelled_at_step is not None:
                cancel(act, runs, cancelled_at_step)
            exit_code = act.wait(ACT_SECONDS)
        output, trouble = (Path(played, name).read_text() for name in ("log", "errors"))
        entries = [json.loads(text) for text in output.splitlines() if text.startswith("{")]
        main = [entry for entry in entries if entry.get("stage") == "Main"]
        # act repeats for a composite action what its steps added
        summaries = [str(entry["content"]) for entry in entries if entry.get("command") == "summary"]
        return Played(
            exit_code=exit_code,
            log="\n".join(str(entry.get("msg", "")).rstrip() for entry in entries) + trouble,
            steps={e["step"]: e["stepResult"] for e in main if "stepResult" in e},
            summary="".join(dict.fromkeys(summaries)),
            messages=[json.dumps(body) for body in self.slack.bodies],
            dispatched=list(self.github.asked),
            record=record,
            run_directory=next((path.parent for path in sorted(runs.glob("gh-*/run.json"))), runs / "none"),
        )

    def pinned(self) -> dict[str, Path]:
        """`owner/name@commit` as the shipped files pin it -> the stand-in."""
        files = [*(self.repository / ".github").rglob("*.yml"), *(self.release / ".github").rglob("*.yml")]
        text = "".join(path.read_text() for path in files)
        found = re.findall(r"uses: (\w\S+)@(\S+)", text)
        actions = {(f"{name}@{pin}", name.split("/")[1]) for name, pin in found}
        known = {action: self.stand_ins[name] for action, name in actions if name in self.stand_ins}
        return known | {OURS: self.release} | self.actions


def cancel(act: "subprocess.Popen[str]", runs: Path, step: int) -> None:
    """Cancel the run once a checkpoint of `step` or later is complete.

    act kills the trainer, GitHub warns it. The trainer keeps two checkpoints: on a busy machine that of
    `step` may be gone before it is seen.
    """

    def has_saved() -> bool:
        complete = runs.glob("*/checkpoints/step-*/manifest.json")
        return any(int(path.parent.name.partition("-")[2]) >= step for path in complete)

    wait_for(has_saved, f"step {step}", alive=[act])
    act.send_signal(signal.SIGINT)


def words(flag: str, values: dict[str, str]) -> list[str]:
    return [word for name, value in values.items() for word in (flag, f"{name}={value}")]


@pytest.fixture(scope="session")
def stage_in(
    repository: Path, release: Path, stand_ins: dict[str, Path], slack: Slack, github: GitHub
) -> Callable[[Path], Stage]:
    """A stage in a folder; its `nvidia-smi` finds no driver, so that a GPU machine plays the same."""
    need("act")

    def build(folder: Path) -> Stage:
        programs = folder / "programs"
        programs.mkdir()
        driver = programs / "nvidia-smi"
        said = "NVIDIA-SMI has failed: no communication with the driver"
        driver.write_text(f"#!/bin/sh\necho '{said}'\nexit 9\n")
        driver.chmod(0o755)
        path = f"{programs}:{os.environ['PATH']}"
        return Stage(repository, folder, stand_ins, slack, github, path, release)

    return build


@pytest.fixture
def stage(stage_in: Callable[[Path], Stage], tmp_path: Path) -> Stage:
    return stage_in(tmp_path)
