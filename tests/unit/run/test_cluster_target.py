"""Commands that people are given to run reach the cluster that was named, whatever options named it."""

import ast
import itertools
import re
import shlex
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainyard.command.cluster_options import cluster_target
from trainyard.run.suggested_commands import ClusterTarget

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
        words = shlex.split(
            text.removeprefix("look first: ").removesuffix("; then try again without kubectl")
        )
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
