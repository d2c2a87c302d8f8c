"""The commands that are proposed can be pasted as they are, and reach the cluster that was named."""

import ast
import itertools
import os
import re
import shlex
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainyard.command.cluster_options import cluster_target
from trainyard.run.suggested_commands import (
    ClusterTarget,
    again_command,
    changed_command,
    is_command,
    made_by,
    resume_command,
    sync_command,
    trainyard_command,
)

NAMES = ["runs/a", "/mnt/my runs/it's; rm -rf $HOME", "--resume auto"]


@pytest.mark.parametrize("name", NAMES)
def test_a_directory_of_any_name_stays_one_word(name: str) -> None:
    config = ["trainyard", "train", "--config", f"{name}/config.yaml"]
    assert shlex.split(again_command(Path(name))) == config
    assert shlex.split(resume_command(Path(name))) == [*config, "--run-dir", name, "--resume", "auto"]


@pytest.mark.parametrize("name", NAMES)
def test_a_run_of_the_pipeline_resumes_with_it_and_with_the_store_it_was_given(name: str) -> None:
    run = ["trainyard", "run", "--store", "file:///my store/it's"]
    words = shlex.split(resume_command(Path(name), command_line=run))
    assert words == ["trainyard", "run", "--run-dir", name, *run[2:]]
    text = changed_command(Path(name), {"a.b": 1e-05, "c": 8}, command_line=run)
    settings = ["--set", "a.b=1e-05", "--set", "c=8"]
    assert shlex.split(text) == [*run[:2], "--config", f"{name}/config.yaml", *settings, *run[2:]]
    assert is_command(text)


def test_a_changed_run_is_one_of_its_own_that_can_begin_from_a_checkpoint() -> None:
    text = changed_command(Path("runs/a"), {"a.b": 0.5}, checkpoint=Path("runs/a/checkpoints/step-00000010"))
    words = shlex.split(text)
    assert words[-4:] == ["--set", "a.b=0.5", "--resume", "runs/a/checkpoints/step-00000010"]
    assert "--run-dir" not in words


def test_only_the_pipeline_names_the_command_that_started_a_run() -> None:
    words = {"": [], "rm -rf /": [], "trainyard run --store 'a b'": ["trainyard", "run", "--store", "a b"]}
    assert {text: made_by({"TRAINYARD_COMMAND_LINE": text}) for text in words} == words


def test_a_command_is_named_plainly_where_the_shell_finds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIRTUAL_ENV", sys.prefix)
    assert trainyard_command("train") == "trainyard train"
    monkeypatch.delenv("VIRTUAL_ENV")
    monkeypatch.setattr(sys, "base_prefix", sys.prefix)
    assert trainyard_command("train") == "trainyard train"


@pytest.mark.parametrize("active", [None, "/another/environment"])
def test_the_path_of_the_command_is_named_where_its_environment_is_not_the_active_one(
    active: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    monkeypatch.delenv("MAKELEVEL", raising=False)
    if active:
        monkeypatch.setenv("VIRTUAL_ENV", active)
    monkeypatch.setattr(sys, "base_prefix", "/usr")
    tool = tmp_path / "my env" / "bin" / "trainyard"
    tool.parent.mkdir(parents=True)
    tool.touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(tool.with_name("python3.11")))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    assert trainyard_command("train") == "'my env/bin/trainyard' train"
    assert is_command(trainyard_command("train"))
    assert again_command(Path("r")) == "'my env/bin/trainyard' train --config r/config.yaml"
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "trainyard").symlink_to(tool)  # as `uv tool install` does
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert trainyard_command("train") == "trainyard train"


def test_a_job_of_github_suggests_no_path_of_its_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert trainyard_command("train").endswith("/trainyard train")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    assert trainyard_command("train") == "trainyard train"


@pytest.mark.parametrize("text", ["restore r/config.yaml", "Run trainyard train again", "trainyard", ""])
def test_a_sentence_is_no_command(text: str) -> None:
    assert not is_command(text)


def test_a_sync_stays_one_command_whatever_the_names() -> None:
    words = shlex.split(sync_command("my runs/a", store="file:///my store", run_number=None))
    flags = ["--run-dir", "my runs/a", "--store", "file:///my store", "--run-number", "auto", "--once"]
    assert words == ["trainyard", "store", "sync", *flags]


@pytest.mark.parametrize("is_bare", [True, False])
def test_the_path_that_make_sets_for_itself_is_not_that_of_the_shell(
    is_bare: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    monkeypatch.delenv("MAKELEVEL", raising=False)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    if not is_bare:
        monkeypatch.setenv("MAKELEVEL", "1")
    words = shlex.split(trainyard_command("config show"))
    assert words[1:] == ["config", "show"]
    assert (words[0] == "trainyard") is is_bare


ROOT = Path(__file__).resolve().parents[3]
VALUES = {
    "kubeconfig": ("/home/me/.kube/team b.yaml", "kube.yaml", "it's"),
    "context": ("arn:aws:eks:us-west-2:123456789012:cluster/gpus", "a b", "$(rm -rf /)", "-x"),
    "cluster": ("gpus", "my cluster"),
    "region": ("us-west-2", "a;b"),
    "namespace": ("team-a", "team b"),
}


def given() -> Iterator[dict[str, str]]:
    """Every combination of options, each with every value that it may have."""
    for count in range(len(VALUES) + 1):
        for names in itertools.combinations(VALUES, count):
            for values in zip(*(itertools.cycle(VALUES[name]) for name in names), range(4), strict=False):
                yield dict(zip(names, values, strict=False))


def options_of(words: list[str]) -> dict[str, str]:
    """The options in a command: `--name value` and `--name=value`."""
    found, rest = {}, iter(words)
    for word in rest:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            found[name] = value if equals else next(rest)
    return found


@pytest.mark.parametrize("namespace", ["", "of-the-job"])
def test_a_command_has_the_options_as_they_were_given(namespace: str) -> None:
    for options in given():
        target = ClusterTarget(**options)
        words = shlex.split(target.command("job", "status", "llama", namespace=namespace))
        assert words[:4] == ["trainyard", "job", "status", "llama"]
        expected = options | ({"namespace": namespace} if namespace else {})
        assert options_of(words[4:]) == expected


def test_options_that_were_not_given_are_not_made_up() -> None:
    nothing = cluster_target(Namespace(kubeconfig=None, context="", cluster="", region=""))
    assert nothing == ClusterTarget()
    assert nothing.command("job", "a b") == "trainyard job 'a b'"


@pytest.mark.parametrize("own", ["kubectl -n team describe pvc fsx", "trainyard cluster fix --apply"])
def test_commands_within_a_sentence_have_them_too(own: str) -> None:
    for options in given():
        text = ClusterTarget(**options).in_text(f"look first: {own}; then try again without kubectl")
        assert text.startswith("look first: ")
        assert text.endswith("; then try again without kubectl")
        own_part = text.removeprefix("look first: ").removesuffix("; then try again without kubectl")
        words = shlex.split(own_part)
        # kubectl's --cluster means something else, and its command has its own namespace.
        kept = ("kubeconfig", "context") if own.startswith("kubectl") else tuple(VALUES)
        expected = {name: value for name, value in options.items() if name in kept}
        rest = [word for word in words if word not in ("-n", "--apply")]
        assert {name: value for name, value in options_of(rest).items() if name in VALUES} == expected


def test_a_text_without_such_a_command_stays_as_it_is() -> None:
    for text in ("", "ask its owner", "trainyard train --resume auto", "see kubectl."):
        assert ClusterTarget("a", "b", "", "c", "d").in_text(text) == text


def test_no_command_for_a_cluster_is_written_without_its_target() -> None:
    """`ClusterTarget.command` makes them; only texts of checks hold others, which `in_text` completes."""
    found = []
    for path in [*(ROOT / "src").rglob("*.py"), *(ROOT / "scripts").glob("*.py")]:
        if "src/trainyard/cluster/" in path.as_posix():
            continue
        text = path.read_text(encoding="utf-8")
        if "cluster" not in text and "kubectl" not in text:
            continue
        nodes = list(ast.walk(ast.parse(text)))
        documentation = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        for node in nodes:
            if not isinstance(node, ast.Constant) or id(node) in documentation:
                continue
            if re.search(r"trainyard cluster (?:fix|check|capacity) -|\bkubectl [-a-z]", str(node.value)):
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}: {node.value!r}")
    assert found == []
