"""Read rows of metrics from what a training program prints, stdout and stderr merged.

    text ──CR, LF──> lines ──ANSI codes off──> JSON | the Hugging Face trainer's | words | a preset's form

This is the last of all sources, for programs of which nothing else is known: no total is read, no number is
guessed, and of a flood of lines only some are rows. `FORMS` has the forms of the presets whose plan needs
each row.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from trainyard.errors import ConfigError
from trainyard.programs.metrics.figure_names import (
    NUMBER,
    flat_figures,
    has_figures,
    read_figure,
    read_number,
    row_of_figures,
)
from trainyard.programs.own_files import AUTO
from trainyard.run.records import Row

NOT_PRINTED = "not printed"
"""The loss of a row whose program omits a loss of NaN from its line."""
_CODES = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|\][^\x07]*\x07)")
_LONGEST_LINE, _MOST_OBJECTS = 1 << 16, 16
# Of more lines that come at once, which is a flood, only some are read, unless one of them may be a
# validation or has a number that is not finite.
_MANY_LINES = 500
_RARE = re.compile(r"val|nan|inf\b", re.I)


@dataclass(frozen=True)
class PresetForm:
    """The line of a program that a preset starts: `iteration 10/ 500 | lm loss: 2.31 | grad norm: 0.5 |`."""

    step: re.Pattern[str]
    """Its step is the first group, the rest of the line has pairs."""
    pairs: re.Pattern[str]
    names: Mapping[str, str] = field(default_factory=dict)
    """The program's name of a figure -> the name in the row, where no rule of `figure_names` says it."""
    first: int = 0
    """1 if the program counts steps from 0."""
    missing: str = ""
    """The loss of a line without one; empty: such a line is no row."""
    validation: re.Pattern[str] | None = None
    """The line of a validation: its step and its loss."""

    def rows(self, line: str) -> Iterator[Row]:
        if self.validation and (found := self.validation.search(line)):
            yield {"step": int(found[1]) + self.first, "val_loss": read_figure(found[2])}
        elif found := self.step.search(line):
            pairs = ((name.strip(), text.strip()) for name, text in self.pairs.findall(line, found.end()))
            row = row_of_figures((self.names.get(name, name), text) for name, text in dict(pairs).items())
            if (milliseconds := row.pop("step_milliseconds", None)) is not None:
                row["step_seconds"] = milliseconds / 1000
            if row.get("loss") == -1.0:  # torchtitan's ranks without the last pipeline stage print it
                del row["loss"]
            elif self.missing:
                row.setdefault("loss", self.missing)
            if "loss" in row or "val_loss" in row:
                yield {**row, "step": int(found[1]) + self.first}


_PIPES = re.compile(r"([^|:]+):([^|]*)(?:\||$)")
FORMS: Mapping[str, PresetForm | None] = {
    "json": None,
    "megatron": PresetForm(
        re.compile(r"iteration\s+(\d+)\s*/\s*\d+\s*\|(?=.*consumed samples)"),
        _PIPES,
        {
            "elapsed time per iteration (ms)": "step_milliseconds",
            "elapsed time per iteration (s)": "step_seconds",
            "number of skipped iterations": "skipped_steps",
            "number of nan iterations": "nan_steps",
        },
        missing=NOT_PRINTED,
        validation=re.compile(
            r"validation loss at iteration (\d+)(?: on validation set)?\s*\|.*?\blm loss value: *(\S+)"
        ),
    ),
    "nemo": PresetForm(
        re.compile(r"Training epoch \d+, iteration \d+/\d+ \|(?=.*global_step: (\d+))"),
        _PIPES,
        {"train_step_timing in s": "step_seconds"},
        first=1,
        missing=NOT_PRINTED,
    ),
    "verl": PresetForm(
        re.compile(r"(?<![\w./])step:(\d+) - "),
        re.compile(r"(\S+?):(\S+\([^()]*\)|\S+)"),
        {
            "actor/pg_loss": "loss",
            "actor/loss": "total_loss",
            "critic/score/mean": "reward",
            "actor/entropy": "entropy",
            "response_length/mean": "completion_length",
            "perf/throughput": "tokens_per_second_per_gpu",
            "timing_s/step": "step_seconds",
        },
    ),
    "torchtitan": PresetForm(
        re.compile(r"(?<!validate )step:\s*(\d+)(?=\s+loss:)"),
        re.compile(r"(\w+):\s+(\S+\([^()]*\)|\S+)"),
        {"tps": "tokens_per_second_per_gpu", "mfu": "mfu(%)"},
        validation=re.compile(r"validate step:\s*(\d+)\s+loss:\s*(\S+)"),
    ),
}

_STEP = re.compile(r"\b(?:global[ _])?(?:step|iter(?:ation)?)s?\b\s*[:=#\[(]?\s*(\d{1,12})\b", re.I)
_EPOCH = re.compile(r"\bepoch\b\W{0,4}(\d{1,9})\b", re.I)
_FIGURE = re.compile(
    r"(?<![\w/])(?:(train(?:ing)?|val(?:id(?:ation)?)?|eval(?:uation)?|test)[ _/-]*)?"
    rf"(loss|reward|acc(?:uracy)?|lr|learning[ _]rate|grad(?:ient)?[ _]?norm)\b\s*[:=(]?\s*({NUMBER})",
    re.I,
)
_FIGURES = {"loss": "loss", "reward": "reward", "acc": "accuracy", "accuracy": "accuracy"}
"""The name of a figure by what is printed; those of a validation begin with `val_`."""
# Words before the step by which a line is of another thing than a step of the training.
_OTHER = re.compile(r"\b(?:eval|val|test|resum|load|best|restor)", re.I)
_BARS = re.compile(r".*%\|[^\]]*\]?")
_DICT = re.compile(r"\{'[^{}]*\}")
_PAIR = re.compile(r"'([^']+)': (?:'([^']*)'|\"([^\"]*)\"|([\w.]+\([^()]*(?:\([^()]*\)[^()]*)*\)|[^,{}]+))")
# A key that is given twice leaves it open which figure is right: its object has none.
_DECODER = json.JSONDecoder(
    object_pairs_hook=lambda pairs: found if len(found := dict(pairs)) == len(pairs) else {}
)


class LogReader:
    """Reads the output of one start of a program."""

    def __init__(self, form: str = AUTO) -> None:
        """`form` is one of FORMS, or `auto` for what programs print. Raises ConfigError for another one."""
        if form != AUTO and form not in FORMS:
            raise ConfigError(f"metrics: {form!r:.80} is no form of a log; use {AUTO}, {', '.join(FORMS)}")
        self._is_auto, self._form = form == AUTO, FORMS.get(form)
        self._rest = ""
        self._validation_loss: Any = None
        self._step = self._offset = self._epoch = 0

    def take(self, text: str) -> list[Row]:
        """Return the rows that `text` completes. Lines come with their ends; the last one may be cut off.

        A row that shows no step has an epoch.
        """
        text = (self._rest + text).replace("\r", "\n")
        lines = text.split("\n")
        self._rest = lines.pop()[-_LONGEST_LINE:]
        if len(lines) > _MANY_LINES and self._is_auto and not _RARE.search(text):
            lines = lines[-1 :: -(len(lines) // _MANY_LINES + 1)][::-1]
        return list(self._rows_in(lines))

    def close(self) -> list[Row]:
        """Return the row of a last line without its end."""
        return self.take("\n")

    def _rows_in(self, lines: list[str]) -> Iterator[Row]:
        for line in lines:
            if "\x1b" in line:
                line = _CODES.sub("", line)
            if self._form is not None:
                yield from map(self._without_repeat, self._form.rows(line))
            # Searching for words is much faster than matching patterns, and most lines have none of them.
            elif '{"' in line:
                yield from _rows_of_json(line)
            elif self._is_auto and "{'" in line:
                yield from filter(None, map(_row_of_dict, _DICT.findall(line)))
            elif self._is_auto and any(word in line for word in ("oss", "LOSS", "eward")):
                yield from self._rows_of_plain(_BARS.sub("", line) if "%|" in line else line)

    def _without_repeat(self, row: Row) -> Row:
        """Return the row without the last validation loss where NeMo prints it again in every line."""
        if "loss" in row and row.get("val_loss") == self._validation_loss:
            row.pop("val_loss", None)
        self._validation_loss = row.get("val_loss", self._validation_loss)
        return row

    def _rows_of_plain(self, line: str) -> Iterator[Row]:
        """Yield the row of a line in words, as training loops of people's own print it.

        Steps that restart in each epoch are counted on. A line with an epoch alone is a row of the epoch.
        """
        place, epoch = _STEP.search(line), _EPOCH.search(line) if "poch" in line.lower() else None
        start = min((found.start() for found in (place, epoch) if found), default=-1)
        if start < 0 or _OTHER.search(line, 0, start) or not (row := _plain_figures(line)):
            return
        number = int(epoch[1]) if epoch else 0
        if place is None:
            yield {"epoch": number, **row}
            return
        step = int(place[1])
        if epoch and number > self._epoch:
            if step + self._offset <= self._step and self._epoch:
                self._offset = self._step + (step == 0)
            self._epoch = number
        self._step = step + self._offset
        if "val_loss" in row and "loss" in row and "train loss" in line:
            row["train_loss"] = row.pop("loss")  # nanoGPT's, estimated beside the validation
        yield {"step": self._step, **row}


def _row_of_dict(text: str) -> Row | None:
    """Return the row of a dict as the Hugging Face trainer prints it; None for its summary and other dicts.

    It states no step, only the epoch: the steps come from trainer_state.json or the observer.
    """
    texts = {name: single or double or bare for name, single, double, bare in _PAIR.findall(text)}
    row = row_of_figures(texts.items())
    return row if "train_runtime" not in texts and {"loss", "val_loss", "reward"} & row.keys() else None


def _plain_figures(line: str) -> Row:
    """Return the losses and rewards of a line and what stands beside them; empty without one.

    A loss with a comma and no point is not guessed: the comma may be that of decimals.
    """
    row: Row = {}
    for kind, name, text in _FIGURE.findall(line):
        kind, name = kind.lower(), name.lower().replace(" ", "_")
        if kind == "test" or (value := read_number(text)) is None or ("," in text and "." not in text):
            continue
        figure = _FIGURES.get(name) or ("learning_rate" if name.startswith("l") else "grad_norm")
        prefix = "val_" if name in _FIGURES and kind.startswith(("val", "eval")) else ""
        row.setdefault(prefix + figure, value)
    return row if {"loss", "val_loss", "reward"} & row.keys() else {}


def _rows_of_json(line: str) -> Iterator[Row]:
    """Yield the row of each JSON object in a line that has a step or an epoch, or a loss, and a figure."""
    place = line.find('{"')
    for _ in range(_MOST_OBJECTS):
        if place < 0 or len(line) - place > _LONGEST_LINE:
            return
        try:
            found, end = _DECODER.raw_decode(line, place)
        except (ValueError, RecursionError):
            place = line.find('{"', place + 1)
            continue
        row = row_of_figures(flat_figures(found))
        if has_figures(row):
            yield row
        place = line.find('{"', end)
