"""The rows of a start from all of its sources, however their parts are read; and whether it resumed."""

import json
import random
import time
import zipfile
from collections.abc import Iterator
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest

from trainyard.config.schema import MonitoringConfig
from trainyard.programs.program import EVENTS_FILE, Program
from trainyard.programs.program_records import begin
from trainyard.programs.run_checkpoints import ResumePoint
from trainyard.programs.run_rows import RunRows
from trainyard.run.directory import RunDirectory
from trainyard.run.records import read_rows

Record = dict[str, Any]


def start(folder: Path, found: ResumePoint | None = None, **program: Any) -> RunRows:
    folder.mkdir(exist_ok=True)
    directory = RunDirectory(folder / "run")
    begin(directory, "a", {}, "recipe: command\n", resumed_at=found.step if found else None)
    directory.logs.mkdir(exist_ok=True)
    (directory.logs / EVENTS_FILE).unlink(missing_ok=True)
    return RunRows(
        directory,
        Program("command", ("python", "train.py"), folder, **program),
        MonitoringConfig(),
        found=found,
        is_first=True,
        is_own=lambda _path, _device, changed: changed >= 10,
    )


def report(folder: Path, *events: Record) -> None:
    with (folder / "run" / "logs" / EVENTS_FILE).open("a") as file:
        for event in events:
            file.write(
                json.dumps({"source": "observed", "pid": 1, "rank": 0, "time": time.time(), **event}) + "\n"
            )


def steps(first: int, last: int, of: float = 5.0, **more: Any) -> list[Record]:
    return [{"event": "row", "step": step, "loss": of / step, **more} for step in range(first, last + 1)]


def test_the_process_that_saved_the_checkpoint_has_the_rows(tmp_path: Path) -> None:
    """A probe before or after the training does not count, however long it is; also after the last row."""
    for name, order, longest in (("before", (2, 1), 9), ("after", (1, 2), 9), ("overtaken", (2, 1), 3)):
        rows = start(tmp_path / name)
        for pid in order:
            last, of = (longest, 8.0) if pid == 2 else (5, 5.0)
            report(tmp_path / name, *({**each, "pid": pid} for each in steps(1, last, of)))
        rows.poll()
        rows.close()
        rows.follow(1)
        written = read_rows(tmp_path / name / "run" / "metrics.jsonl")
        assert [(row["step"], row["loss"]) for row in written] == [(step, 5.0 / step) for step in range(1, 6)]
        assert rows.observations.steps == 5, name


def test_where_losses_were_not_seen_the_printed_ones_are_the_rows(tmp_path: Path) -> None:
    """As in a CUDA graph, whose first steps alone are observed."""
    for partial in ({}, {"partial": True}):
        for text in ("", "step 10 loss 3.5\nstep 20 loss 2.5\n"):
            folder = tmp_path / f"{len(partial)}-{len(text)}"
            rows = start(folder)
            report(folder, *steps(1, 3), {"event": "exit", "step": 23, **partial})
            rows.read(text, time.time())
            rows.close()
            written = read_rows(folder / "run" / "metrics.jsonl")
            assert [row["step"] for row in written] == ([10, 20] if partial and text else [1, 2, 3])
            assert rows.observations.steps == 23


def test_steps_that_were_undone_are_none_of_the_run(tmp_path: Path) -> None:
    """As those of a search for a learning rate, which are more than those of the training here."""
    rows = start(tmp_path)
    report(tmp_path, *steps(1, 9, 8.0), {"event": "anew"}, *steps(1, 4), {"event": "exit", "step": 4})
    rows.close()
    written = read_rows(tmp_path / "run" / "metrics.jsonl")
    assert [(row["step"], row["loss"]) for row in written] == [(step, 5.0 / step) for step in range(1, 5)]
    assert rows.observations.steps == 4


def shuffle(parts: dict[str, list[Any]], chance: random.Random) -> Iterator[tuple[str, Any]]:
    """Yield the parts of each source in their order, and those of the sources in any."""
    left = {name: list(each) for name, each in parts.items()}
    while left:
        name = chance.choice(sorted(left))
        yield name, left[name].pop(0)
        if not left[name]:
            del left[name]


PRINTED = "".join(
    [
        "eval step 1/2 loss 3.1\nstep 0: val loss 2.5\n",
        *(f"step {step}: loss {9 / step:.4f} lr 0.5\n" for step in range(1, 41)),
        "epoch 1: loss nan\nstep 40: val loss 1.5\n",
    ]
)
SOURCES: dict[str, dict[str, list[Any]]] = {
    "printed alone": {},
    "observed": {"event": steps(1, 40)},
    "observed with a fault": {
        "event": [*steps(1, 20), {"event": "row", "step": 21, "loss": "nan"}, *steps(22, 40)]
    },
    "passes, then an optimizer": {"event": [*steps(1, 4, 8.0, passes=True), *steps(1, 40)]},
    "passes alone": {"event": steps(1, 40, passes=True)},
    "a file": {"line": [f"{step},{7 / step}\n" for step in range(2, 41, 2)]},
    "both": {"event": steps(1, 40), "line": [f"{step},{7 / step}\n" for step in range(2, 41, 2)]},
}


@pytest.mark.slow
def test_no_verdict_depends_on_the_order_in_which_things_are_read(tmp_path: Path) -> None:
    """The same output, events and file in other pieces, with polls in between: one record."""
    wrong = []
    for name, sources in SOURCES.items():
        known = set[str]()
        for seed in range(12):
            chance, folder = random.Random(seed), tmp_path / f"{name} {seed}"
            rows, table = start(folder, metrics="log.csv"), folder / "log.csv"
            cuts = sorted({0, len(PRINTED), *(chance.randrange(len(PRINTED)) for _ in range(seed * 4))})
            text = [PRINTED[one:other] for one, other in pairwise(cuts)]
            for kind, part in shuffle({"text": text, **sources}, chance):
                if kind == "text":
                    rows.read(part, time.time())
                elif kind == "event":
                    report(folder, part)
                else:
                    with table.open("a") as file:
                        file.write(part if table.stat().st_size else f"step,loss\n{part}")
                if chance.random() < 0.2:
                    rows.poll()
            rows.close()
            record = [{k: v for k, v in row.items() if k != "time"} for row in read_rows(rows.writer._path)]
            in_order = sorted(record, key=lambda row: ("step" not in row, row.get("step", 0)))
            merged = (rows.merged.sources, rows.merged.newest)
            known.add(json.dumps((in_order, *merged, rows.writer.fault, rows.observations.steps)))
        if len(known) > 1:
            wrong.append((name, sorted(known)))
    assert not wrong


SAVED = "own.pt"
READS: dict[str, tuple[list[Record], bool]] = {
    "a file of its own that is gone": (
        [{"event": "read", "path": "/a", "changed": [1, 10]}, *steps(1, 9)],
        False,
    ),
    "what it was given": ([{"event": "read", "path": SAVED, "changed": [1, 9]}, *steps(1, 9)], False),
    "from memory": ([{"event": "read", "path": ""}, *steps(1, 9)], False),
    "nothing": (steps(1, 9), True),
    "given weights alone": ([{"event": "read", "path": "/a", "changed": [1, 9]}, *steps(1, 9)], True),
    "its best model, at the end": (
        [*steps(1, 9), {"event": "read", "path": "/a", "changed": [1, 10], "step": 9}],
        True,
    ),
    "nothing, and nobody saw it step": ([{"event": "loaded"}], False),
}


def test_a_program_that_reads_no_checkpoint_of_the_run_did_not_resume(tmp_path: Path) -> None:
    wrong = []
    for (name, (events, is_anew)), kind in product(READS.items(), ("torch", "other")):
        folder = tmp_path / f"{name} {kind}"
        first = start(folder)
        report(folder, *steps(1, 20, of=7.0))
        first.close()
        with zipfile.ZipFile(folder / SAVED, "w") as archive:
            archive.writestr("own/data.pkl" if kind == "torch" else "own/w.npy", b"")
        rows = start(folder, ResumePoint(20, folder / SAVED))
        given = {"path": str(folder / SAVED)}
        report(folder, *(each | (given if each.get("path") == SAVED else {}) for each in events))
        rows.poll()
        rows.close()
        noted = [
            row["step"] for row in read_rows(folder / "run/events.jsonl") if row["event"] == "not_resumed"
        ]
        last = max(row["step"] for row in read_rows(rows.writer._path))
        does_step = events[-1]["event"] != "loaded"
        is_anew = is_anew and kind == "torch"
        wanted = ([1], 9) if is_anew else ([], 29 if does_step else 20)
        if (noted, last) != wanted:
            wrong.append((name, kind, noted, last))
    assert not wrong


def test_a_trainer_that_ends_early_by_itself_announces_its_last_step(tmp_path: Path) -> None:
    wrong = []
    ends: dict[str, tuple[Record, int | None]] = {
        "ended": ({"event": "end", "step": 5, "steps": 9}, 5),
        "ended elsewhere": ({"event": "end", "step": 4, "steps": 9}, None),
        "not ended": ({"event": "begin", "step": 0, "steps": 9}, None),
    }
    for name, (event, wanted) in ends.items():
        rows = start(tmp_path / name)
        report(tmp_path / name, *({**row, "source": ""} for row in (*steps(1, 5), event)))
        rows.close()
        if (rows.ended_at, rows.announced) != (wanted, 9):
            wrong.append((name, rows.ended_at, rows.announced))
    assert not wrong
