"""Attempts of another program in one run directory: the record is green exactly when the course was right.

The program is simulated, so that hundreds of courses take seconds. The expected result follows from a rule
(`Played.is_right`) about the model: the losses of the steps that led to its present weights.
"""

import json
import random
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from tests.integration.checkpoint_shapes import TRACKER, archive
from tests.unit.jobs.recipe_orders import recipe_config

from trainyard.config.load import config_sha256, dump_yaml
from trainyard.config.schema import Config
from trainyard.gateways.supervised_process import ProgramExit
from trainyard.programs.program import Program, ProgramLaunch
from trainyard.programs.supervisor import ProgramRun
from trainyard.proof.completion import completion_problem
from trainyard.proof.recorded_events import course_of
from trainyard.run.directory import RunDirectory
from trainyard.run.identity import read_origin, read_run
from trainyard.run.launch_environment import NodeLauncher
from trainyard.run.records import read_rows
from trainyard.run.run_settings import read_settings

STEPS = 8
Losses = dict[int, str]
"""Step -> loss, of the steps that led to a model."""


@dataclass(frozen=True)
class Attempt:
    """How one attempt goes."""

    until: int = STEPS
    """The last step that it trains."""
    saves: tuple[int, ...] = (4, 8)
    exit_code: int = 0
    resumes: bool = True
    """Whether it takes the newest checkpoint; else it starts from scratch."""
    scale: int = 1
    """Another scale gives other losses."""
    prints: bool = True
    prints_again: bool = False
    """Whether it first repeats the line of the step from which it resumes."""
    nan_at: int = 0
    nan_twice: int = 0
    """The step for which a second rank prints NaN after all steps were printed."""
    steps: int = STEPS
    """The steps that it is asked to train."""


@dataclass
class Played:
    """A program, with the steps behind its model and its checkpoints, and those that it printed."""

    folder: Path
    saved: dict[int, Losses] = field(default_factory=dict)
    newest: int = 0
    model: Losses = field(default_factory=dict)
    paper: Losses = field(default_factory=dict)
    """The printed losses of the steps up to that of the model."""

    def play(self, attempt: Attempt, read: Callable[[str], None]) -> ProgramExit:
        start = self.newest if attempt.resumes else 0
        self.model = dict(self.saved.get(start, {}))
        self.paper = {step: loss for step, loss in self.paper.items() if step <= start}
        if attempt.prints_again and start:
            read(line(start, json.loads((self._of(start) / "model.json").read_text())[str(start)]))
        for step in range(start + 1, attempt.until + 1):
            self.model[step] = "nan" if step == attempt.nan_at else str(attempt.scale / step)
            if attempt.prints:
                read(line(step, self.model[step]))
                self.paper[step] = self.model[step]
            if step in attempt.saves:
                self._save(step)
        if attempt.nan_twice:
            read(line(attempt.nan_twice, "nan"))
            for steps in (self.model, self.paper, *self.saved.values()):
                steps.update({attempt.nan_twice: "nan"} if attempt.nan_twice in steps else {})
        return ProgramExit(attempt.exit_code)

    def _save(self, step: int) -> None:
        target = self._of(step)
        target.mkdir(parents=True, exist_ok=True)
        (target / "model.json").unlink(missing_ok=True)
        (target / "model.json").write_text(json.dumps(self.model))
        for part in ("model", "optim"):
            archive(target / f"{part}_world_size_1_rank_0.pt", 10)
        archive(target.parent / "data.pt", 10)
        (self.folder / TRACKER).write_text(str(step))
        self.saved[step], self.newest = dict(self.model), step

    def _of(self, step: int) -> Path:
        return self.folder / f"global_step_{step}" / "actor"

    def is_right(self, last: Attempt) -> bool:
        """The rule: it ended well, its model has all steps, and the last one was shown.

        The program decides which steps it prints, but what it printed is what was trained, and is not NaN.
        """
        is_done = list(self.model) == list(range(1, last.steps + 1)) and "nan" not in self.paper.values()
        is_shown = last.steps in self.paper or self.has_saved()
        is_true = bool(self.paper) and self.paper.items() <= self.model.items()
        return last.exit_code == 0 and is_done and is_shown and is_true

    def has_saved(self) -> bool:
        return self.saved.get(self.newest) == self.model


def line(step: int, loss: str) -> str:
    return f"step:{step} - actor/pg_loss:{loss} - critic/score/mean:0.5\n"


@cache
def config_of(steps: int) -> Config:
    return recipe_config("verl", f"training.max_steps={steps}", "training.warmup_steps=0")


class Runs:
    """Starts attempts in this process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.restart()

    def restart(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.directory, self.commit = RunDirectory(self.folder / "run"), "c" * 40
        own = self.directory.path / "program"
        own.mkdir(parents=True)
        self.work = self.folder / "work"
        self.work.mkdir()
        self.played = Played(own)

    def attempt(self, attempt: Attempt, *, node: NodeLauncher | None = None, nodes: int = 1) -> int:
        checkpoints = f"{self.played.folder}/global_step_*/"
        # A folder of its own: figures are searched in all files of a program's folder.
        program = Program("verl", ("python",), self.work, steps=attempt.steps, checkpoints=checkpoints)
        launch = ProgramLaunch(program, self.directory, node or NodeLauncher(1, 0, 1), nodes=nodes)
        code = {"commit": self.commit, "dirty": False}
        run = ProgramRun(program, launch, config_of(attempt.steps), code=code)
        run.begin("played")
        return run.end(self.played.play(attempt, lambda text: run.read(text, time.time())), {})

    @property
    def record(self) -> dict[str, Any]:
        return read_run(self.directory.run_file)

    def trained(self) -> str | None:
        """Return why it is not proven that it trained; None if it is."""
        settings = read_settings(self.directory.config_file.read_bytes())
        course = course_of(self.record, read_rows(self.directory.events_file))
        rows = read_rows(self.directory.metrics_file)
        return completion_problem(self.record, rows, course, settings=settings)

    def taken(self) -> Losses | None:
        """Return the losses behind the last checkpoint; None if the record names none of the last step."""
        outcome = self.record["outcome"]
        if outcome.get("checkpoint", {}).get("step") != outcome["steps"]:
            return None
        file = self.directory.checkpoint(outcome["steps"]) / "actor" / "model.json"
        return {int(step): loss for step, loss in json.loads(file.read_text()).items()}

    def losses(self) -> Losses:
        return {row["step"]: str(row["loss"]) for row in read_rows(self.directory.metrics_file)}


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    monkeypatch.setenv("TRAINYARD_RUN_ID", "llama")
    return Runs(tmp_path / "job")


def shapes() -> list[Attempt]:
    """Every kind of attempt, and each damage to those that train all steps."""
    sound = [
        Attempt(until=until, saves=saves, exit_code=code, resumes=resumes, prints_again=again)
        for until, saves, code, resumes, again in product(
            (0, 3, 6, 8), ((), (4,), (8,), (4, 8)), (0, 1), (True, False), (False, True)
        )
        if not (again and not resumes) and (until or resumes)
    ]
    damages: list[dict[str, Any]] = [
        *({"nan_at": step} for step in (2, 5, 8)),
        *({"nan_twice": step} for step in (2, 5, 8)),
        {"prints": False},
    ]
    whole = [attempt for attempt in sound if attempt.until == STEPS]
    damaged = [replace(attempt, **damage) for attempt, damage in product(whole, damages)]
    return [*sound, *(each for each in damaged if each.prints or each.resumes)]


def courses(seed: int, count: int) -> Iterator[tuple[Attempt, ...]]:
    """Courses of one to three attempts. Each trains with losses of its own, or all with the same ones."""
    chance, kinds = random.Random(seed), shapes()
    ends = [each for each in kinds if each.exit_code == 0 and each.until == STEPS]
    sound = [each for each in ends if each.prints and not (each.nan_at or each.nan_twice)]
    for _ in range(count):
        chosen = chance.choices(kinds, k=chance.choice((0, 1, 1, 1, 2, 2)))
        last = chance.choice(chance.choice((ends, sound)))
        if chance.random() < 0.25:  # training.max_steps was raised
            last = replace(last, steps=12, until=12, saves=(*last.saves, *chance.choice(((), (12,)))))
        same = chance.random() < 0.5
        yield tuple(replace(each, scale=1 if same else n + 1) for n, each in enumerate([*chosen, last]))


def judged(runs: Runs, course: tuple[Attempt, ...]) -> bool:
    """Play the course, compare the record with the rule, and return whether it is green."""
    codes = [runs.attempt(each) for each in course]
    problem, taken, right = runs.trained(), runs.taken(), runs.played.is_right(course[-1])
    said = f"{course}\n{codes} {problem}\n{runs.losses()} {taken}"
    if "nan" in {*runs.played.model.values()} - {*runs.played.paper.values()}:
        return False  # an attempt that began anew has replaced the row: only the tensors show the NaN
    assert problem is None or not right, f"a false red: {said}"
    assert (codes[-1] == 0) or problem, said
    if problem is None and taken is not None:
        assert runs.losses().items() <= taken.items(), f"other rows than the checkpoint's: {said}"
    assert (problem is None) is right, f"a false green: {said}"
    if right:
        assert (taken is not None) is runs.played.has_saved(), said
    return problem is None


AGAIN = Attempt(resumes=False, scale=2, saves=())
"""It trains all steps again with other losses, and saves nothing."""
NAMED = {
    "it goes on after the checkpoint": (Attempt(until=6, exit_code=1), Attempt(scale=2)),
    "it prints the step of the checkpoint again": (Attempt(until=6, exit_code=1), Attempt(prints_again=True)),
    "it was finished, and prints nothing": (Attempt(), Attempt()),
    "it was finished, and prints its last step again": (Attempt(), Attempt(prints_again=True)),
    "more steps are asked for": (Attempt(), Attempt(steps=12, until=12, saves=(12,))),
    "it never resumes": (Attempt(until=6, exit_code=1), Attempt(resumes=False, scale=2)),
    "it lost steps, and says that all is well": (Attempt(saves=(4,), exit_code=1), Attempt(until=4)),
    "the checkpoint is that of an attempt before": (Attempt(exit_code=1), AGAIN),
    "and is resumed from after that": (Attempt(exit_code=1), replace(AGAIN, exit_code=1), Attempt()),
    "a second rank prints NaN": (Attempt(nan_twice=5),),
    "a second rank prints NaN, and then it resumes there": (
        Attempt(until=4, nan_twice=4, exit_code=1),
        Attempt(prints_again=True),
    ),
    "a NaN is trained again from scratch": (
        Attempt(until=6, nan_at=3, exit_code=1),
        Attempt(resumes=False, scale=2),
    ),
}
RIGHT = 6
"""So many of the first ones, and the last one, are right."""


@pytest.mark.parametrize("name", NAMED)
def test_a_course_that_was_met_is_judged_by_the_rule(
    name: str, runs: Runs, caplog: pytest.LogCaptureFixture
) -> None:
    judged(runs, NAMED[name])
    right = [*list(NAMED)[:RIGHT], list(NAMED)[-1]]
    assert name not in right or "No row was found" not in caplog.text, "an attempt before had rows"
    assert (runs.trained() is None and runs.taken() is not None) is (name in right)


def test_an_attempt_that_prints_the_same_steps_again_did_not_resume(runs: Runs) -> None:
    runs.attempt(Attempt(until=6, exit_code=1))
    runs.attempt(Attempt(resumes=False))
    course = course_of(runs.record, read_rows(runs.directory.events_file))
    assert course.retries == (
        "1 retry; it was given the checkpoint of step 4 and did not resume from it: trained again from step 1"
    )
    assert course.resumed_after == ()


def test_wandb_continues_one_run_in_each_attempt(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    runs.attempt(Attempt())
    launch = ProgramLaunch(Program("verl", ("python",), Path.cwd()), runs.directory, NodeLauncher(1, 0, 1))
    given = launch.environment(None)
    assert (given["WANDB_RUN_ID"], given["WANDB_RESUME"]) == (runs.record["key"], "allow")
    monkeypatch.setenv("WANDB_RUN_ID", "mine")
    assert launch.environment(None).keys().isdisjoint({"WANDB_RUN_ID", "WANDB_RESUME"})


def test_the_record_is_green_exactly_when_the_course_was_right(runs: Runs) -> None:
    green = 0
    for course in courses(1, 40):
        runs.restart()
        green += judged(runs, course)
    assert green > 2, "the rule was put to the test"


@pytest.mark.parametrize(("nodes", "world"), [(4, 32), (1, 8)])  # Ray: started once, on the head
def test_the_record_counts_the_processes_of_all_nodes(nodes: int, world: int, runs: Runs) -> None:
    assert runs.attempt(Attempt(), node=NodeLauncher(1, 0, 8), nodes=nodes) == 0
    hardware = runs.record["hardware"]
    assert (hardware.get("world_size"), hardware["local_world_size"]) == (world, 8)


@pytest.mark.parametrize("saves", [(), (4,), (8,)])
def test_the_record_says_what_the_last_attempt_was_asked_and_whence_the_steps_before_came(
    saves: tuple[int, ...], runs: Runs
) -> None:
    runs.attempt(Attempt(saves=saves, exit_code=1), node=NodeLauncher(1, 0, 8), nodes=4)
    first, runs.commit = runs.record, "d" * 40
    assert runs.attempt(Attempt(steps=12, until=12), nodes=1) == 0
    record = runs.record
    assert (record["run_id"], record["created"]) == (first["run_id"], first["created"])
    assert (record["plan"]["steps"], record["git"]["commit"]) == (12, "d" * 40)
    assert record["config_sha256"] == config_sha256(config_of(12)) != first["config_sha256"]
    assert runs.directory.config_file.read_text() == dump_yaml(config_of(12))
    before = {**read_origin(first), "until": max(saves, default=0)}
    assert record["history"] == ([before] if saves else [])
    assert (before["commit"], before["world_size"]) == ("c" * 40, 32)
