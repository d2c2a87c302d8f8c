"""Names on the command line that Kubernetes refuses are refused, for every flag and every kind of mistake."""

import itertools
from typing import Any

import pytest
from tests.cases import each_case
from tests.unit.jobs.plans import IMAGE, config, plan

from trainyard.errors import ConfigError

FLAGS: dict[str, str] = {
    "--queue": "queue",
    "--priority-class": "priority_class",
    "--volume": "claim",
    "--secret": "secret_environment",
    "--hf-token-secret": "token_secret",
    "--ray-cluster": "ray_cluster",
    "--job-name": "name",
    "--namespace": "namespace",
    "--image-uri": "image",
    "--tolerate": "tolerations",
}
WRONG_EVERYWHERE = (
    *(" ", "A b", "a b", " a", "a ", "a\n", "\na", "a\tb", "a\x1b[31m", "a\x00"),
    *("é", "名", "a\u200bb", "-a", ".a", "a-", "a..b/", "a/", "/a", "a=b:NoSchedule", "$(x)", "a,b", "a'b"),
    *("a" * 5000, "-" * 5000, "é" * 5000),
)
NOT_DNS = ("A", "aB", "a_b", "a..b", "a.-b", "a-.b", "a/b", "a" * 254)
MORE_WRONG: dict[str, tuple[str, ...]] = {
    "--queue": (*NOT_DNS, "a" * 64, "a:b"),
    "--priority-class": (*NOT_DNS, "a:b"),
    "--volume": (*NOT_DNS, "a:b"),
    "--secret": (*NOT_DNS, "a:b"),
    "--hf-token-secret": (
        *NOT_DNS,
        ":k",
        ":",
        "a:b c",
        "a:b:c",
        "a:.",
        "a:..",
        "a:..b",
        "a:é",
        "a:" + "b" * 254,
    ),
    "--ray-cluster": (*NOT_DNS, "1a", "a.b", "a" * 54),
    "--job-name": (*NOT_DNS, "1a", "a.b"),
    "--namespace": (*NOT_DNS, "a.b", "a" * 64),
    "--image-uri": (
        "Train:1",
        "a/B",
        "a:b:c",
        "a@b",
        "a@sha256:0",
        "https://a/b",
        ":1",
        "a:",
        "a//b",
        "a" * 513,
    ),
    "--tolerate": ("", "a/b/c", "A.b/c", "a_b/c", "a" * 64, "x" * 254 + "/a", "a:NoSchedule"),
}
RIGHT: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("--priority-class", "--volume", "--secret"), ("a", "a-b", "a.b", "1", "a" * 253)),
    "--queue": ("a", "team-a.b", "1", "a" * 63),
    "--hf-token-secret": ("a", "a.b", "a:", "a:token", "a:HF_TOKEN.x-y", "a:.hidden", "a:" + "b" * 253),
    "--ray-cluster": ("a", "shared-1", "a" * 53),
    "--job-name": ("a", "gh-4711-1", "a" * 47),
    "--namespace": ("a", "1", "team-a", "a" * 63),
    "--image-uri": (
        *(IMAGE, "train", "train:1", "a/b", "a/b:V1_2", "a/b_c/d__e-f.g:x", "localhost:5000/a/b:1"),
        *("[::1]:5000/a", "Registry.Example/a:1", "a:1@sha256:" + "a" * 64, "a@sha512:" + "b" * 128),
        "123456789012.dkr.ecr.us-west-2.amazonaws.com/team/train:2026.1",
    ),
    "--tolerate": ("a", "A_b.c", "nvidia.com/gpu", "sagemaker.amazonaws.com/node-health-status", "a" * 63),
}


def problems(flag: str, value: str) -> list[str]:
    """The problems of a job in which only this name may be wrong."""
    given: Any = (value,) if flag == "--tolerate" else value
    try:
        kind = "raycluster" if flag == "--ray-cluster" else "pytorchjob"
        plan("compute.strategy=ddp", **{"kind": kind, FLAGS[flag]: given})
    except ConfigError as error:
        return str(error).split("\n")[:-1]
    return []


@each_case("flag", FLAGS)
def test_a_name_that_kubernetes_refuses_is_refused_with_its_flag(flag: str) -> None:
    for value in (*WRONG_EVERYWHERE, *MORE_WRONG[flag]):
        lines = problems(flag, value)
        assert lines, (flag, value[:80])
        assert all(flag in line for line in lines), lines
        assert all(len(line) < 80 * 4 + 250 for line in lines), "a value is shown up to 80 characters"


@each_case(("flag", "value"), [(flag, v) for flag in RIGHT for v in RIGHT[flag]])
def test_a_name_that_kubernetes_takes_is_accepted(flag: str, value: str) -> None:
    assert problems(flag, value) == []


def test_the_names_of_the_yaml_have_the_same_rule() -> None:
    keys = {
        "--queue": "cluster.queue",
        "--priority-class": "cluster.priority_class",
        "--volume": "cluster.volume.claim",
        "--secret": "cluster.secret",
    }
    for (flag, key), value in itertools.product(keys.items(), NOT_DNS):
        assert problems(flag, value)
        with pytest.raises(ConfigError, match=key):
            config(f"{key}={value}")
