"""Run directories of several machines, whose processes are threads here that gather through a barrier."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from trainyard.errors import CheckpointError, ConfigError, TrainyardError
from trainyard.run.atomic_files import sha256_of_file
from trainyard.run.checkpoint_manifest import (
    MANIFEST_NAME,
    CheckpointManifest,
    describe_files,
    write_manifest,
)
from trainyard.run.directory import RunDirectory
from trainyard.run.node_folder import NodeFolder, read_node, write_node
from trainyard.training.checkpoint.resume import agreed_resume_point
from trainyard.training.checkpoint.stored_index import ResumePoint
from trainyard.training.runtime import shared_directory
from trainyard.training.runtime.shared_directory import lock_run_directory, with_folders
from trainyard.training.runtime.world import World


@dataclass
class Meeting:
    """The values that the threads of a world gather."""

    size: int
    values: dict[int, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.barrier = threading.Barrier(self.size, timeout=60)


@dataclass(frozen=True)
class ThreadWorld(World):
    meeting: Meeting = field(default_factory=lambda: Meeting(1))

    def gather(self, value: Any) -> list[Any]:
        self.meeting.values[self.rank] = value
        self.meeting.barrier.wait()
        found = [self.meeting.values[rank] for rank in range(self.size)]
        self.meeting.barrier.wait()
        return found

    def broadcast(self, value: Any, *, source: int = 0) -> Any:
        return self.gather(value)[source]

    @contextmanager
    def _long_wait(self, what: str) -> Iterator[None]:
        yield


def run_together(work: Callable[[World], Any], *, machines: tuple[int, ...] = (1, 1)) -> list[Any]:
    """Return the result or error of `work` on each process; `machines` has the processes of each machine."""
    places = [local for count in machines for local in range(count)]
    meeting = Meeting(len(places))
    size = len(places)
    worlds = [ThreadWorld(rank, size, at, None, meeting=meeting) for rank, at in enumerate(places)]

    def attempt(world: World) -> Any:
        try:
            return work(world)
        except TrainyardError as error:
            return error

    with ThreadPoolExecutor(len(places)) as pool:
        return list(pool.map(attempt, worlds))


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_directory, "_PATIENCE_SECONDS", 0.3)


def test_each_machine_has_a_folder_and_its_first_process_owns_it() -> None:
    for machines, folders in (((1, 1), (0, 1)), ((2, 1, 2), (0, 0, 1, 2, 2)), ((3,), (0, 0, 0))):
        worlds = run_together(lambda world: with_folders(world, shared=False), machines=machines)
        assert {world.folders for world in worlds} == {folders}
        first = [local == 0 for count in machines for local in range(count)]
        assert [world.owns_folder for world in worlds] == first
        shared = run_together(lambda world: with_folders(world, shared=True), machines=machines)
        assert [world.owns_folder for world in shared] == [world.rank == 0 for world in shared]
        assert {world.folder_count for world in shared} == {1}


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("is_one", [True, False])
def test_the_folder_must_be_shared_as_configured(tmp_path: Path, shared: bool, is_one: bool) -> None:
    def work(world: World) -> str:
        world = with_folders(world, shared=shared)
        place = tmp_path / ("one" if is_one else str(world.rank // 2))
        with lock_run_directory(RunDirectory(place), world):
            return "trained"

    answers = run_together(work, machines=(2, 2))
    if shared == is_one:
        assert answers == ["trained"] * 4
        return
    assert all(isinstance(error, ConfigError) for error in answers)
    fix = "checkpointing.shared to false" if shared else "Set checkpointing.shared to true"
    assert fix in str(answers[0])


def test_a_folder_that_cannot_be_written_is_refused_on_all(tmp_path: Path) -> None:
    (tmp_path / "1").write_text("a file")

    def work(world: World) -> str:
        with lock_run_directory(RunDirectory(tmp_path / str(world.rank)), with_folders(world, shared=False)):
            return "trained"

    assert ["cannot be used" in str(error) for error in run_together(work)] == [True, True]


def test_the_mark_of_a_machine_is_read_back_and_ends_with_its_trainer(tmp_path: Path) -> None:
    def work(world: World) -> NodeFolder | None:
        world, directory = with_folders(world, shared=False), RunDirectory(tmp_path / str(world.rank))
        with lock_run_directory(directory, world):
            write_node(directory, NodeFolder("r", world.folder, world.folder_count))
            before = read_node(directory)
        assert before is not None
        assert not before.is_over
        return read_node(directory)

    assert run_together(work) == [NodeFolder("r", 0, 2, True), NodeFolder("r", 1, 2, True)]
    write_node(RunDirectory(tmp_path / "0"), NodeFolder("r", 0, 1))
    assert read_node(RunDirectory(tmp_path / "0")) is None


def write_checkpoint(directory: RunDirectory, step: int, *, without: str = "", other: bool = False) -> None:
    path = directory.checkpoint(step)
    path.mkdir(parents=True)
    for name in ("__0_0.distcp", "__1_0.distcp"):
        (path / name).write_text(name + ("!" if other else ""))
    write_manifest(path, CheckpointManifest(step, "r", 1.0, describe_files(path)))
    if without:
        (path / without).unlink()


# The checkpoints of the second machine: step -> what is wrong with it; and the problem that is named.
SECOND: list[tuple[dict[int, dict[str, Any]], str | None]] = [
    ({4: {}}, None),
    ({4: {"without": "__0_0.distcp"}}, "is not complete on this machine"),
    ({4: {"other": True}}, "differs from the checkpoint"),
    ({}, "is not complete on this machine"),
    (
        {4: {}, 6: {"without": "__0_0.distcp"}},
        "step-00000006 lacks parts; the newest complete one is of step 4",
    ),
]


@pytest.mark.parametrize(("second", "problem"), SECOND)
@pytest.mark.parametrize("has_first", [True, False])
def test_a_resume_needs_the_complete_checkpoint_on_every_machine(
    tmp_path: Path, second: dict[int, dict[str, Any]], problem: str | None, has_first: bool
) -> None:
    directories = [RunDirectory(tmp_path / str(rank)) for rank in range(2)]
    if has_first:
        write_checkpoint(directories[0], 4)
    for step, wrong in second.items():
        write_checkpoint(directories[1], step, **wrong)

    def work(world: World) -> ResumePoint | None:
        path = directories[0].checkpoint(4)

        def find() -> ResumePoint | None:
            return ResumePoint(path, 4, sha256_of_file(path / MANIFEST_NAME)) if has_first else None

        return agreed_resume_point(find, directories[world.rank], with_folders(world, shared=False))

    answers = run_together(work)
    if has_first and problem is None:
        assert [point.path for point in answers] == [each.checkpoint(4) for each in directories]
    elif not has_first and not directories[1].checkpoint_steps():
        assert answers == [None, None]
    else:
        assert all(isinstance(error, CheckpointError) for error in answers)
        assert all("trainyard step fetch-checkpoint on every machine" in str(error) for error in answers)
        assert (problem if has_first and problem else "none is complete") in str(answers[0])


def test_the_first_process_of_each_machine_prepares_before_the_others() -> None:
    done: list[int] = []

    def work(world: World) -> int:
        def prepare() -> int:
            time.sleep(0.0 if world.local_rank else 0.1)
            done.append(world.local_rank)
            return world.rank

        return world.run_on_each(prepare)

    assert run_together(work, machines=(2, 2)) == [0, 1, 2, 3]
    assert done == [0, 0, 1, 1]


def test_a_shared_folder_needs_no_agreement(tmp_path: Path) -> None:
    point = ResumePoint(tmp_path, 4, "x")
    directory = RunDirectory(tmp_path)
    found = run_together(lambda world: agreed_resume_point(lambda: replace(point), directory, world))
    assert found == [point, point]
