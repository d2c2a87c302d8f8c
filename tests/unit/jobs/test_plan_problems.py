"""Plans that Kubernetes refuses, or whose pods could not start or would waste what they hold, by rule.

Each rule is tried with generated wrong values, and with values near them that are right.
"""

import itertools
from typing import Any

import pytest
from tests.unit.jobs.plans import config, containers, instance_for, objects, plan, request

from trainyard.errors import ConfigError
from trainyard.jobs.job_planning import plan_job
from trainyard.jobs.kinds import KINDS

OWN = ("python", "work.py")


def problems(*overrides: str, **changes: Any) -> list[str]:
    settings = overrides if any("strategy" in o for o in overrides) else ("compute.strategy=ddp", *overrides)
    try:
        plan_job(config(*settings), request(**changes))
    except ConfigError as error:
        return str(error).split("\n")[:-1]
    return []


OURS = ("POD", "NODE", "RUN_ID", "NETWORK", "IMAGE_DIGEST", "FILES")
OPERATORS = ("PET_NNODES", "PET_ANYTHING", "MASTER_ADDR", "RANK", "WORLD_SIZE", "JOB_COMPLETION_INDEX")
COUNTS = ("NNODES", "NPROC_PER_NODE", "NODE_RANK")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("command", [(), OWN], ids=["trainer", "own"])
def test_variables_that_others_set_are_refused(kind: str, command: tuple[str, ...]) -> None:
    place: dict[str, Any] = {
        "kind": kind,
        "command": command,
        "instance_type": instance_for(kind, "p5.48xlarge"),
    }
    reserved = [*(f"TRAINYARD_{name}" for name in OURS), *OPERATORS]
    allowed = ["TRAINYARD_STORE", "TRAINYARD_USD_PER_HOUR", "MY_RANK", "LOG", "HF_HOME", "TRAINYARD_POD_NAME"]
    own_counts = bool(command) and kind != "hyperpod"
    (allowed if own_counts else reserved).extend(COUNTS)
    for name, value in itertools.product(reserved, ("", "1", "x")):
        (line,) = problems(environment={name: value}, **place)
        assert line.startswith(f"--env {name}: set by ")
    for name in allowed:
        assert problems(environment={name: "1"}, **place) == []


@pytest.mark.parametrize("value", ["", "x"])
def test_the_variable_of_the_token_is_set_once(value: str) -> None:
    (line,) = problems(token_secret="hub", environment={"HF_TOKEN": value})
    assert line == "--env HF_TOKEN: set by --hf-token-secret"
    made = plan(nodes=2, token_secret="hub", environment={"HF_HOME": "/scratch"})
    for container in (one for body in objects(made) for one in containers(body)):
        names = [entry["name"] for entry in container["env"]]
        assert len(names) == len(set(names))


TAKEN = ("/scratch", "/dev/shm", "/dev/hugepages", "/etc/trainyard", "/dev", "/proc", "/sys", "/dev/shm/runs")
HIDDEN = ("/", "/etc", "/usr", "/bin", "/lib", "/usr/lib", "/usr/local", "/var", "/run")
SPELLINGS = ("{}", "{}/", "{}//", "/{}", "{}/.", "{}/a/..", "/x/..{}")


@pytest.mark.parametrize("path", (*TAKEN, *HIDDEN, "/proc/1", "/sys/fs", "/etc/trainyard/a"))
def test_a_volume_does_not_hide_what_a_pod_has_for_something_else(path: str) -> None:
    for spelling in SPELLINGS:
        (line,) = problems(mount_path=spelling.format(path))
        assert line.startswith("--checkpoint-path: ")
        (line,) = problems(f"cluster.volume.mount_path={spelling.format(path)}")
        assert line.startswith("cluster.volume.mount_path: ")


@pytest.mark.parametrize(
    "path",
    [
        "/checkpoints",
        "/checkpoints/",
        "/data/a",
        "/opt/ml",
        "/scratch/runs",
        "/var/lib/a",
        "/etc/a",
        "/devices",
        "/mnt",
    ],
)
def test_a_volume_may_be_anywhere_else(path: str) -> None:
    assert problems(mount_path=path) == []
    assert problems(f"cluster.volume.mount_path={path}") == []
    assert problems(mount_path="/scratch", claim="") == []


def test_a_long_path_is_shown_in_part() -> None:
    (line,) = problems(mount_path="a" * 4000)
    assert len(line) < 200


SIZED = ("cluster.pod.cpu=8", "cluster.pod.memory=64Gi")


@pytest.mark.parametrize("place", [{}, {"instance_type": "", "gpus_per_node": 8}], ids=["type", "no type"])
@pytest.mark.parametrize("size", ["65Gi", "9999Gi", "1Pi", "69G", "65537Mi"])
def test_shared_memory_is_a_part_of_the_memory(size: str, place: dict[str, Any]) -> None:
    (line,) = problems(*SIZED, f"cluster.pod.shared_memory={size}", **place)
    assert line.startswith(f"cluster.pod.shared_memory: {size} is more than")


@pytest.mark.parametrize("size", ["64Gi", "1Mi", "68G", "2M"])
def test_shared_memory_may_be_all_of_the_memory(size: str) -> None:
    assert problems(*SIZED, f"cluster.pod.shared_memory={size}") == []


@pytest.mark.parametrize("key", ["memory", "shared_memory"])
def test_a_size_that_kubernetes_would_read_as_none_is_refused(key: str) -> None:
    (line,) = problems(f"cluster.pod.{key}=1M")
    assert line.startswith(f"cluster.pod.{key}: 1M is less than 1 MiB")
    assert problems(f"cluster.pod.{key}=2M") == []


@pytest.mark.parametrize("nodes", [100_001, 2**31, 3_000_000_000, 10**18])
def test_more_nodes_than_operators_can_count_are_refused(nodes: int) -> None:
    (line,) = problems(nodes=nodes)
    assert line == f"--num-nodes {nodes:,}: at most 100,000"
    assert problems(nodes=100_000) == []
