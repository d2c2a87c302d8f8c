"""The record of a run of another program: rows in order, ends of nodes."""

import json
from pathlib import Path

import pytest

from trainyard.programs.metric_rows import MetricRowWriter
from trainyard.programs.node_exit_codes import forget_ends, wait_for_ends, write_end
from trainyard.programs.program_records import ProgramEnd, begin, finish
from trainyard.programs.sources import Source
from trainyard.run.directory import RunDirectory
from trainyard.run.records import read_rows


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    found = RunDirectory(tmp_path / "run")
    begin(found, "llama", {"plan": {"steps": 20}}, "recipe: verl\n", resumed_at=None)
    return found


def test_the_first_node_hears_how_the_others_ended(directory: RunDirectory) -> None:
    write_end(directory, 1, 0)
    write_end(directory, 2, 0)
    assert wait_for_ends(directory, range(1, 3), seconds=0) is None
    assert wait_for_ends(directory, range(1, 1), seconds=0) is None
    write_end(directory, 2, 137)
    assert wait_for_ends(directory, range(1, 3), seconds=0) == "node 2 ended with exit code 137"
    (directory.logs / "node-2.end.json").write_text("damaged")
    missing = wait_for_ends(directory, range(1, 3), seconds=0)
    assert missing == "node 2 has not reported how it ended within 0 s"
    forget_ends(directory)
    assert list(directory.logs.glob("*.end.json")) == []


def test_the_first_node_waits_for_the_others(directory: RunDirectory) -> None:
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        write_end(directory, 1, 0)

    assert wait_for_ends(directory, range(1, 2), seconds=60, sleep=sleep) is None
    assert len(waited) == 1


def write(directory: RunDirectory, *steps: int) -> None:
    rows = MetricRowWriter(directory.metrics_file)
    rows.merged.add_all(({"step": step, "loss": 1.0 / (step + 1)} for step in steps), Source.PRINTED, 1.0)
    rows.write(is_over=True)


def test_a_run_that_goes_on_has_no_outcome_until_it_ends(directory: RunDirectory) -> None:
    write(directory, 10)
    finish(directory, ProgramEnd(1), seconds=1.0)
    begin(directory, "llama", {}, "", resumed_at=10)
    assert "outcome" not in json.loads(directory.run_file.read_text())
    assert [event["event"] for event in read_rows(directory.events_file)] == [
        "started",
        "finished",
        "resumed",
    ]


@pytest.mark.parametrize(("resumed_at", "kept"), [(None, []), (5, [0]), (10, [0, 10]), (20, [0, 10, 20])])
def test_only_rows_of_the_checkpoint_that_is_resumed_from_stay_on_record(
    resumed_at: int | None, kept: list[int], directory: RunDirectory
) -> None:
    """Steps after that checkpoint were lost, so an attempt that prints none of them has not done them."""
    write(directory, 0, 10, 20)
    finish(directory, ProgramEnd(1), seconds=1.0)
    begin(directory, "llama", {"plan": {"steps": 20}}, "recipe: verl\n", resumed_at=resumed_at)
    assert [row["step"] for row in read_rows(directory.metrics_file)] == kept
    done = finish(directory, ProgramEnd(0), seconds=1.0)
    assert (done == 0) is (kept == [0, 10, 20])
