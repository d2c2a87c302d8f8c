"""A manifest on the command line, as the person who wrote it types it."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.unit.jobs.manifests import manifests

Call = Callable[..., Any]
STORED = "recipe: command\nartifacts: {store: 's3://ml-runs/train'}\nprogram: {command: [x], steps: 9}\n"


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump_all(manifests()["pytorchjob"]))
    return file


def test_a_dry_run_shows_the_additions_and_what_is_sent_unchanged(called: Call, theirs: Path) -> None:
    done = called("job deploy", "--manifest", theirs, "--dry-run", "--namespace", "team")
    assert done.returncode == 0, done.stderr
    changed = [line[1:].strip() for line in done.stdout.splitlines() if line[:1] in "+-" and line[1:2] == " "]
    assert all(line.startswith(("trainyard.dev/", "namespace: team")) for line in changed[1:]), changed
    assert "-  " not in done.stdout and done.stdout.endswith("# applied unchanged before it: Service etcd\n")
    assert "cleanPodPolicy: it is not set" in done.stderr, "it is linted"
    theirs.write_text(yaml.safe_dump_all(manifests()["trainjob"]))
    done = called("job deploy", "--manifest", theirs, "--dry-run")
    assert "WANDB_API_KEY: a secret in plain text" in done.stderr, "so is the runtime beside it"


def test_what_cannot_train_is_refused_unless_it_is_accepted(called: Call, theirs: Path) -> None:
    theirs.write_text(theirs.read_text().replace("nvidia.com/gpu: 8", "nvidia.com/gpu: 9", 1))
    for more, code in (((), 2), (("--accept", "lint"), 0)):
        done = called("job deploy", "--manifest", theirs, "--dry-run", *more)
        assert done.returncode == code and "such a pod is refused" in done.stderr


def test_a_manifest_comes_from_stdin_a_folder_or_a_template(
    called: Call, theirs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = theirs.read_text()
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    piped = called("job deploy", "--manifest", "-", "--dry-run", "--json")
    folder = theirs.parent / "all"
    folder.mkdir()
    (folder / "a.yaml-template").write_text(text.replace("replicas: 2", "replicas: $NODES"))
    filled = called("job deploy", "--manifest", folder, "--dry-run", "--json", NODES="2")
    for done in (piped, filled):
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["plan"]["nodes"] == 2
    (folder / "kustomization.yaml").touch()
    done = called("job deploy", "--manifest", folder, "--dry-run")
    assert done.returncode == 2 and f"kustomize build {folder} | trainyard job deploy" in done.stderr


def test_what_a_manifest_says_itself_is_no_option(called: Call, theirs: Path) -> None:
    cases = (
        (("--num-nodes", "4"), "--num-nodes is not used with --manifest"),
        (("--image-uri", "a"), "--image-uri is not used with --manifest"),
        (("--prove",), "--config is needed"),
        (("--", "python", "train.py"), "remove the command after --"),
    )
    for options, reason in cases:
        done = called("job deploy", "--manifest", theirs, "--dry-run", *options)
        assert done.returncode == 2 and reason in done.stderr, done.stderr
    alone = called("job deploy", "--dry-run")
    assert alone.returncode == 2 and "--config FILE is needed, or --manifest FILE" in alone.stderr
    misplaced = called("job deploy", "--config", theirs, "--prove", "--dry-run")
    assert misplaced.returncode == 2 and "--prove is for --manifest" in misplaced.stderr


def test_proving_wraps_the_command_and_says_where_trainyard_comes_from(called: Call, theirs: Path) -> None:
    settings = theirs.with_name("trainyard.yaml")
    settings.write_text(STORED)
    proven = ("--manifest", theirs, "--config", settings, "--accept", "learned", "--dry-run")
    done = called("job deploy", *proven, "--prove")
    assert done.returncode == 0, done.stderr
    assert "Trainyard must be in the image registry.invalid/theirs:1" in done.stderr
    removed = {line.strip("- ") for line in done.stdout.splitlines() if line.startswith("-  ")}
    assert {"args:", "torchrun", "train.py"} <= removed
    copied = called("job deploy", *proven, "--prove-from", "registry.invalid/tools:1")
    assert "an init container copies Trainyard from registry.invalid/tools:1" in copied.stderr
    assert "+          initContainers:" in copied.stdout
    without = theirs.read_text().replace("claimName", "ignored").replace("persistentVolumeClaim", "emptyDir")
    theirs.write_text(without)
    lost = called("job deploy", *proven, "--prove")
    assert lost.returncode == 2 and "mount its claim in the manifest" in lost.stderr
