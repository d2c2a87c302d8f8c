"""The script of checkpoints on a cluster as people call it, against a server that runs the pod's commands."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration import checkpoint_shapes as shapes
from tests.scripts.conftest import Call
from tests.unit.gateways.kubernetes.exec_server import ExecServer, exec_server
from tests.unit.gateways.kubernetes.memory_cluster import write_kubeconfig

SPACE = "/api/v1/namespaces/team"
CLAIMS = f"{SPACE}/persistentvolumeclaims"
Manage = Callable[..., Any]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ExecServer]:
    shapes.plant_all(tmp_path / "volume", big=2000)
    with exec_server(root=str(tmp_path / "volume")) as server:
        server.objects[f"{SPACE}/pods/trainer"] = {"status": {"phase": "Running"}}
        server.objects["/api/v1"] = {
            "resources": [
                {"name": "persistentvolumeclaims", "kind": "PersistentVolumeClaim", "namespaced": True}
            ]
        }
        yield server


@pytest.fixture
def manage(server: ExecServer, called: Call, tmp_path: Path) -> Manage:
    kubeconfig = tmp_path / "kubeconfig"
    write_kubeconfig(kubeconfig, server.server)

    def run(*words: str, code: int = 0) -> Any:
        done = called("job checkpoints", *words, "--kubeconfig", str(kubeconfig))
        assert done.returncode == code, done.stderr
        return done

    return run


POD = ("--pod", "trainer", "--path", "/volume")


def test_they_are_listed_found_and_copied(manage: Manage, tmp_path: Path) -> None:
    listed = manage("list", *POD).stdout
    assert listed.splitlines()[0].split()[:3] == ["checkpoint", "format", "step"]
    verdicts = re.findall(r" \d+ +(complete|partial)\b", listed)
    assert (verdicts.count("complete"), verdicts.count("partial")) == (10, 5)
    found = json.loads(manage("find", *POD, "--json").stdout)
    assert [each["step"] for each in found["checkpoints"]] == [200] * 5
    several = manage("copy", *POD, "--to", str(tmp_path / "out"), code=1)
    assert "several runs have checkpoints" in several.stderr
    words = ("copy", *POD, "--checkpoint", "verl/global_step_100", "--to", str(tmp_path / "out"))
    assert manage(*words, "--dry-run").stdout.startswith("would copy verl/global_step_100: 8 files")
    assert not (tmp_path / "out").exists()
    data = json.loads(manage(*words, "--json").stdout)
    assert data["copied"] and data["fetched_bytes"] == data["bytes"]
    copy = shapes.digests(tmp_path / "out" / "global_step_100")
    assert copy == shapes.digests(tmp_path / "volume" / "verl" / "global_step_100") == data["sha256"]
    titan = ("copy", "--pod", "trainer", "--path", "/volume/titan", "--step", "newest")
    done = manage(*titan, "--to", str(tmp_path / "back"))
    assert "SHA-256 equal on both ends" in done.stderr
    assert (tmp_path / "back" / "step-200" / ".metadata").is_file()


def test_where_nothing_is_whole_find_says_no(manage: Manage, tmp_path: Path) -> None:
    shapes.dcp(tmp_path / "volume" / "new" / "step-1", done=False)
    none = manage("find", "--pod", "trainer", "--path", "/volume/new", code=1)
    assert "There are no checkpoints" in none.stdout
    manage("list", "--pod", "trainer", "--path", "/volume/nothing", code=1)


NEW = ("create-volume", "--claim", "fsx", "--storage-class", "fsx", "--size", "1200Gi")


def test_a_volume_is_planned_and_one_that_is_there_left_alone(manage: Manage, server: ExecServer) -> None:
    planned = manage(*NEW, "--dry-run").stdout
    assert "storage: 1200Gi" in planned and planned.endswith("# fsx would be created\n")
    assert [method for method, _, _ in server.changes] == ["PATCH"], "the API server is asked, as a dry run"
    there = json.loads(manage(*NEW, "--json", "--dry-run").stdout)["object"]
    server.objects[f"{CLAIMS}/fsx"] = there
    assert "is there already" in manage(*NEW).stdout
    for change in (("--size", "2400Gi"), ("--storage-class", "gp3")):
        refused = manage(*NEW, *change, code=2)
        assert "It is not changed" in refused.stderr
    assert len(server.changes) == 2


WRONG = [
    (("copy", *POD), "copy needs --to"),
    (("list", "--claim", "a", "--pod", "b"), "not allowed with"),
    (("list",), "is required"),
    (("list", "--job", ""), "is required"),
    (("list", "--claim", ""), "is required"),
    (("list", *POD, "--to", "x"), "--to is for copy"),
    (("list", "--pod", "a", "--path", "b"), "absolute folder"),
    (("copy", *POD, "--to", "x", "--step", "last"), "neither a step nor newest"),
    (("create-volume", "--claim", "a"), "create-volume needs --size"),
    (("create-volume", "--claim", "a", "--size", "many", "--storage-class", "b"), "write a size such as"),
    (("create-volume", "--claim", "a", "--size", "0", "--storage-class", "b"), "write a size such as"),
    (("list", "--claim", "nothing"), "no PersistentVolumeClaim nothing in team"),
]


@pytest.mark.parametrize(("words", "why"), WRONG)
def test_wrong_usage_is_told(manage: Manage, words: tuple[str, ...], why: str) -> None:
    assert why in manage(*words, code=2).stderr


@pytest.mark.parametrize(
    "words",
    [
        ("list", "--claim", ".."),
        ("list", "--claim", "fsx/status"),
        ("list", "--pod", "trainer/log", "--path", "/volume"),
        ("list", *POD, "--namespace", "team/pods"),
        ("create-volume", "--claim", "Fsx", "--storage-class", "fsx", "--size", "1200Gi"),
    ],
    ids=" ".join,
)
def test_a_name_that_no_object_can_have_is_refused(
    words: tuple[str, ...], manage: Manage, server: ExecServer
) -> None:
    assert "name" in manage(*words, code=2).stderr
    assert not server.changes
