"""JSON with a key twice is refused wherever a figure decides: nobody can say which of the two was meant."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainyard.commands.evaluate import run_command
from trainyard.errors import TrainyardError
from trainyard.programs.metrics.log_reader import LogReader
from trainyard.programs.metrics.metric_files import MetricFiles
from trainyard.programs.program_events import parse_event
from trainyard.report.facts.history import newest_rows, read_history
from trainyard.run.identity import parse_run
from trainyard.run.records import read_rows
from trainyard.run.untrusted_files import parse_json_object


def file_of(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text)
    return folder / name


def rows_in(name: str, outer: str = "%s\n") -> Callable[[Path, str], object]:
    """Return a reader that takes a row from the program's file `name`."""

    def read(folder: Path, text: str) -> object:
        files = MetricFiles(folder)
        file_of(folder, name, outer % text)
        return files.poll(at_end=True)

    return read


READERS: dict[str, Callable[[Path, str], object]] = {
    "an evaluation": lambda _, text: run_command([sys.executable, "-c", f"print({text!r})"], "it", {}),
    "JSON lines of a program": rows_in("log.jsonl"),
    "the Hugging Face trainer's state": rows_in("trainer_state.json", '{"log_history": [%s]}'),
    "a printed row": lambda _, text: [row for row in LogReader().take(f"INFO {text}\n") if "loss" in row],
    "a logged row": lambda _, text: parse_event(f'{{"event":"row", {text[1:]}'.encode()),
    "metrics.jsonl": lambda folder, text: read_rows(file_of(folder, "m.jsonl", text + "\n")),
    "metrics.jsonl for health": lambda folder, text: newest_rows(file_of(folder, "h.jsonl", text + "\n")),
    "metrics.jsonl for curves": lambda folder, text: (
        read_history(file_of(folder, "c.jsonl", text + "\n")).size
    ),
    "run.json": lambda _, text: parse_run(text.encode(), "run.json"),
    "manifests and proofs": lambda _, text: parse_json_object(text, "report/proof.json"),
}
FIELDS = '"schema_version": 1, "run_id": "r", "step": 10, "loss": 0.1'
TWICE = {
    "at the end": f'{{{FIELDS}, "loss": 0.9}}',
    "at the start": f'{{"loss": 0.9, {FIELDS}}}',
    "the same value": f'{{{FIELDS}, "loss": 0.1}}',
    "written otherwise": f'{{{FIELDS}, "l\\u006fss": 0.9}}',
    "with a blank": f'{{{FIELDS}, "loss" : 0.9}}',
}


def test_a_figure_given_twice_counts_nowhere(tmp_path: Path) -> None:
    wrong = []
    for number, (reader, read) in enumerate(READERS.items()):
        for way, text in {"once": f"{{{FIELDS}}}", **TWICE}.items():
            folder = tmp_path / f"{number}-{way.replace(' ', '-')}"
            folder.mkdir()
            found: Any = None
            try:
                found = read(folder, text)
            except TrainyardError as error:
                found = () if way != "once" else str(error)
            if bool(found) is not (way == "once"):
                wrong.append(f"{reader}, {way}: {found!r}")
    assert not wrong, "\n".join(wrong)


def test_two_names_of_an_evaluated_figure_are_one_key(tmp_path: Path) -> None:
    for text, is_right in (
        (json.dumps({"a.b": 0.1, "a": {"b": 0.9}}), False),
        (json.dumps({"a.b": 0.1, "a": {"c": 0.9}}), True),
    ):
        try:
            found = run_command([sys.executable, "-c", f"print({text!r})"], "it", {})
        except TrainyardError as error:
            assert "a key twice" in str(error), text
            found = {}
        assert bool(found) is is_right, text
