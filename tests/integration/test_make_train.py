"""`make train` as a newcomer runs it: one command on a clone, and the same command again after a kill."""

import html
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

import pytest
from tests import warm_start
from tests.git_repository import git, init_repository
from tests.waiting import wait_for

from trainyard.commands.run import RunRequest, pipeline_of, settings
from trainyard.config.load import dump_yaml, load_config
from trainyard.errors import ConfigError
from trainyard.run.identity import newest_run

REPOSITORY_ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = Path(sys.executable).parent.parent
INSTALLED = ("-o", ".venv/training.stamp", "-o", ".venv/development.stamp")
"""Words for make: the environment is up to date."""
SETTINGS = (
    "training.max_steps=20 training.batch_size=4 training.validation_steps=10 training.validation_batches=2 "
    "checkpointing.save_steps=5 data.sequence_length=64 compute.threads=1"
)


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of this tree's files, with one commit, in a folder whose name has a space.

    Its environment is a link to the one that runs these tests: make's `-o` cannot name a path with spaces.
    """
    folder = tmp_path_factory.mktemp("clone") / "my yard, 100%"
    folder.mkdir()
    listed = git(REPOSITORY_ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    for name in filter(lambda name: name and (REPOSITORY_ROOT / name).is_file(), listed):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes((REPOSITORY_ROOT / name).read_bytes())
        (folder / name).chmod((REPOSITORY_ROOT / name).stat().st_mode)
    init_repository(folder)
    (folder / ".venv").symlink_to(ENVIRONMENT)
    (folder / ".git/info/exclude").write_text(".venv\n")
    return folder


def make(clone: Path, target: str, **variables: str) -> "subprocess.Popen[str]":
    """Start `make TARGET` with the environment that runs these tests taken as installed."""
    if not (ENVIRONMENT / "training.stamp").exists():
        # Make would install the training lock here, which lacks the tools of the tests.
        pytest.skip(f"{ENVIRONMENT} was not made by make install-dev, and make train would change it")
    words = ["make", target, *INSTALLED]
    words += [f"{name}={value}" for name, value in variables.items()]
    return subprocess.Popen(
        words, cwd=clone, env=environment_of(clone), text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip


def environment_of(clone: Path) -> dict[str, str]:
    outer = {"MAKEFLAGS", "MAKELEVEL", "MFLAGS", "GITHUB_ACTIONS", "TRAINYARD_RUN_ID"}
    environment = {key: value for key, value in os.environ.items() if key not in outer}
    return environment | {"PYTHONPATH": str(clone / "src"), "NO_COLOR": "1"}


def output_of(process: "subprocess.Popen[str]") -> str:
    text, _ = process.communicate(timeout=300)
    return text


@pytest.mark.slow
def test_one_command_trains_stores_and_proves_a_model(clone: Path) -> None:
    process = make(clone, "train", SET=SETTINGS)
    text = output_of(process)
    assert process.returncode == 0, text
    shown = ("environment:", "writable, run 1 is free [ok]", "data:", "20 steps", "artifacts:")
    for line in (*shown, "trained: 20 of 20 steps", "stored:", "(clean)"):
        assert line in text
    (run,) = (clone / "runs").iterdir()
    assert json.loads((run / "report" / "proof.json").read_text())["proven"] is True
    assert (run / "report" / "index.html").is_file()
    assert (clone / "trainyard-store" / "manifests" / "run-1-manifest.json").is_file()
    assert git(clone, "status", "--porcelain") == ""


@pytest.mark.slow
def test_a_run_that_blows_up_ends_with_what_to_change_and_has_its_reports(
    clone: Path, tmp_path: Path
) -> None:
    words = ["--config", "configs/smoke.yaml", "--settings", f"{SETTINGS} training.learning_rate=1e9"]
    line = [sys.executable, "-m", "trainyard", "run", *words, "--runs", f"{tmp_path}/runs"]
    done = warm_start.run(line, cwd=clone, env=environment_of(clone), timeout=300)
    text = done.stdout + done.stderr
    assert done.returncode == 1, text
    (run,) = (tmp_path / "runs").iterdir()
    again = f"run --config {run}/config.yaml --set training.learning_rate=0.001"
    closing = text[text.index(f"report: {run}/report/index.html") :]
    for shown in ("failed: in step ", "checkpoint: none was saved\n", "error: ", f"trainyard {again}\n"):
        assert shown in closing
    assert "resume" not in text
    summary = (run / "report" / "summary.md").read_text()
    assert summary.startswith("### ❌ Not proven: trained, stored")
    assert f"trainyard {again}\n" in summary
    assert again in html.unescape((run / "report" / "index.html").read_text())
    dashboard = json.loads((run / "report" / "dashboard.json").read_text())
    assert (dashboard["status"], dashboard["failure"]["class"]) == ("FAILED", "nan")


@pytest.mark.slow
def test_a_killed_make_train_goes_on_with_make_resume(clone: Path, tmp_path: Path) -> None:
    store = f"file://{tmp_path}/store"
    killed = make(clone, "train", RUNS=f"{tmp_path}/killed", STORE=store, SET=SETTINGS)
    checkpoints = "killed/*/checkpoints/step-*/manifest.json"
    wait_for(lambda: [*tmp_path.glob(checkpoints)], "a checkpoint", alive=[killed])
    os.killpg(killed.pid, signal.SIGKILL)
    output_of(killed)
    resumed = make(clone, "resume", RUNS=f"{tmp_path}/killed", STORE=store)
    text = output_of(resumed)
    assert resumed.returncode == 0, text
    (proof,) = tmp_path.glob("killed/*/report/proof.json")
    assert json.loads(proof.read_text())["proven"] is True


def planned(clone: Path, target: str, *words: str) -> "subprocess.CompletedProcess[str]":
    """Return the commands that make would run."""
    line = ["make", "--dry-run", "--no-print-directory", target, *INSTALLED, *words]
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    return subprocess.run(line, cwd=clone, env=plain, capture_output=True, text=True, timeout=240)


@pytest.fixture
def three_runs(tmp_path: Path) -> Path:
    """The last run by name was written the longest ago; `zz-empty` has no record yet."""
    runs = tmp_path / "all runs"
    for name, age in (("gh-77", 300), ("20260101-120000-aaaa", 100), ("20260301-120000-bbbb", 200)):
        (runs / name).mkdir(parents=True)
        config = load_config(REPOSITORY_ROOT / "configs" / "smoke.yaml", []).config
        (runs / name / "config.yaml").write_text(dump_yaml(config))
        (runs / name / "run.json").write_text(json.dumps({"run_id": name}))
        os.utime(runs / name / "run.json", (time.time() - age,) * 2)
    (runs / "zz-empty").mkdir()
    return runs


def test_resume_takes_the_run_that_was_last_at_work_with_its_own_configuration(
    clone: Path, three_runs: Path
) -> None:
    last = three_runs / "20260101-120000-aaaa"
    assert newest_run(three_runs) == last
    found = pipeline_of(RunRequest(runs=three_runs, run_dir=Path("newest")))
    # The record has no inputs, so they differ from those of today: the run is one beside it.
    assert (found.run_dir, found.config) == (last.with_name(f"{last.name}-2"), last / "config.yaml")
    text = planned(clone, "resume", f"RUNS={three_runs}").stdout
    assert f'--runs "{three_runs}"' in text
    assert '--run-dir "newest"' in text
    assert "--config" not in text


def test_resume_takes_what_is_named_and_changed_on_its_line(clone: Path, three_runs: Path) -> None:
    named = three_runs / "gh-77"
    text = planned(clone, "resume", f"RUN_DIR={named}").stdout
    assert f'--run-dir "{named}"' in text
    assert "--config" not in text
    other = planned(clone, "resume", f"RUN_DIR={named}", "CONFIG=configs/other.yaml").stdout
    assert '--config "configs/other.yaml"' in other


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("training.max_steps=9  training.seed=7", ["training.max_steps=9", "training.seed=7"]),
        ("model.name=\"my model\" a.b='c d'", ["model.name=my model", "a.b=c d"]),
        ('model.name="it\'s mine"', ["model.name=it's mine"]),
        ("a.b='$(shell touch made)' c.d=\"$(touch made)\"", ["a.b=$(shell touch made)", "c.d=$(touch made)"]),
        ("'a.b=`touch made`' c.d=1;touch e.f=$$HOME", ["a.b=`touch made`", "c.d=1;touch", "e.f=$$HOME"]),
        ("a.b=#1 c.d=50% e.f=*.txt g=[1,2]", ["a.b=#1", "c.d=50%", "e.f=*.txt", "g=[1,2]"]),
        ("model.name=Übung\na.b=1\n", ["model.name=Übung", "a.b=1"]),
        ("", []),
    ],
)
@pytest.mark.parametrize("by", ["command line", "environment"])
def test_settings_reach_the_pipeline_as_they_were_quoted(
    clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, words: list[str], by: str
) -> None:
    """A stand-in for Python prints the words that make gives it."""
    stand_in = tmp_path / "bin" / "python"
    stand_in.parent.mkdir()
    stand_in.write_text('#!/bin/sh\nprintf "%s\\0" "$@"\n')
    stand_in.chmod(0o755)
    if by == "environment":
        monkeypatch.setenv("SET", given)
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    line = ["make", "train", f"VENV={tmp_path}", "-o", f"{tmp_path}/training.stamp"]
    line += [f"SET={given}"] if by == "command line" else []
    (tmp_path / "training.stamp").touch()
    done = subprocess.run(line, cwd=clone, env=plain, capture_output=True, text=True, timeout=60, check=True)
    reached = done.stdout.split("\0")
    assert settings(reached[reached.index("--settings") + 1]) == words
    assert not (clone / "made").exists()


def test_an_open_quote_is_refused() -> None:
    with pytest.raises(ConfigError, match="No closing quotation"):
        settings("model.name='my")


@pytest.mark.parametrize("word", ["Set=a.b=9", "CONFGI=a.yaml", "store=s3://bucket", "training.max_steps=9"])
def test_a_variable_that_is_misspelt_is_refused_before_anything_starts(clone: Path, word: str) -> None:
    for target in ("train", "help"):
        done = planned(clone, target, word)
        assert (done.returncode, done.stdout) == (2, "")
        name = word.partition("=")[0]
        assert f"{name} is not a variable of this Makefile, which knows CONFIG" in done.stderr
        assert 'SET="a.b=1"' in done.stderr
        assert "Nothing was started" in done.stderr


def test_variables_of_other_programs_pass(clone: Path) -> None:
    plain = planned(clone, "train", "RUN_DIR=runs/x")
    done = planned(
        clone, "train", "RUN_DIR=runs/x", "V=1", "CUDA_VISIBLE_DEVICES=0", "UV_CACHE_DIR=/tmp/cache"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == plain.stdout


def test_resume_without_a_run_says_so(clone: Path) -> None:
    process = make(clone, "resume", RUNS="nowhere")
    text = output_of(process)
    assert process.returncode == 2
    assert "There is no run in nowhere yet. `make train` starts a run." in text
    with pytest.raises(ConfigError, match=r"There is no runs/mistyped/config\.yaml\. Name "):
        pipeline_of(RunRequest(run_dir=Path("runs/mistyped")))
    assert "environment:" not in text


def test_without_a_store_a_folder_of_the_working_directory_is_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "my yard, 100%"
    folder.mkdir()
    monkeypatch.chdir(folder)
    request = RunRequest(config=REPOSITORY_ROOT / "configs" / "smoke.yaml")
    url = pipeline_of(request).store
    assert unquote(url) == f"file://{folder}/trainyard-store"
    set_store = replace(request, changes=["artifacts.store=s3://ml-runs/config"])
    assert pipeline_of(set_store).store == "s3://ml-runs/config"
    assert pipeline_of(replace(set_store, store="s3://ml-runs/b")).store == "s3://ml-runs/b"


@pytest.mark.parametrize(
    "name", [".uv", ".venv", "runs", "trainyard-store", "native/build", "native/build-sanitized"]
)
def test_what_the_commands_write_is_no_change_of_the_repository(name: str) -> None:
    line = ["git", "check-ignore", "--quiet", f"{name}/file"]
    assert subprocess.run(line, cwd=REPOSITORY_ROOT, timeout=120).returncode == 0
