"""Read rows of metrics from what a training program prints, stdout and stderr merged.

    text ──CR, LF──> lines ──ANSI codes off──> JSON | the Hugging Face trainer's | words | a preset's form

This is the last of all sources, for programs of which nothing else is known: no total is read, no number is
guessed, and of a flood of lines only some are rows. `FORMS` has the forms of the presets whose plan needs
each row.
"""

import json
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from trainyard.errors import ConfigError
from trainyard.programs.metrics.figure_names import flat_figures, has_figures, row_of_figures
from trainyard.programs.metrics.printed_numbers import NUMBER, read_figure, read_number
from trainyard.run.records import Row
from trainyard.run.untrusted_files import parse_json_line

AUTO = "auto"
NOT_PRINTED = "not printed"
"""The loss of a row whose program omits a loss of NaN from its line."""
_CODES = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|\][^\x07]*\x07)")
_LONGEST_LINE, _MOST_OBJECTS = 1 << 16, 16
_GIB = 2**30
_SHOWN_LINES, _SHOWN_WIDTH = 3, 160
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
            texts = {name.strip(): text.strip() for name, text in self.pairs.findall(line, found.end())}
            row = row_of_figures((self.names.get(name, name), text) for name, text in texts.items())
            for name in ("memory", "mmemory"):
                if "GiB" in texts.get(name, "") and (size := read_number(texts[name].partition("GiB")[0])):
                    row["gpu_memory_bytes"] = round(float(size) * _GIB)
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
            "samples per second": "samples_per_second",
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
        {"tps": "tokens_per_second_per_gpu", "wps": "tokens_per_second_per_gpu", "mfu": "mfu(%)"},
        validation=re.compile(r"validate step:\s*(\d+)\s+loss:\s*(\S+)"),
    ),
}

_STEP = re.compile(r"\b(?:global[ _])?(?:step|iter(?:ation)?)s?\b\s*[:=#\[(]?\s*(\d{1,12})\b", re.I)
_EPOCH = re.compile(r"\bepoch\b\W{0,4}(\d{1,9})\b", re.I)
_FIGURE = re.compile(
    r"(?<![\w/])(?:(train(?:ing)?|val(?:id(?:ation)?)?|eval(?:uation)?|test)[ _/-]*)?"
    rf"(loss|lr|learning[ _]rate|grad(?:ient)?[ _]?norm)\b\s*[:=(]?\s*({NUMBER})",
    re.I,
)
# Words before the step by which a line is of another thing than a step of the training.
_OTHER = re.compile(r"\b(?:eval|val|test|resum|load|best|restor)", re.I)
_BAR = re.compile(r"%\|[^|]*\|\s*(\d+)/(\d+) \[")
_PREFIXES = re.compile(r"(?:\[[^\]]*\]:?|\([^)]*\)|\d+:|\s)*")
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
        self._bar = _HuggingFaceBar()
        self._validation_loss: Any = None
        self._step = self._offset = self._epoch = 0
        self._has_rows = False
        self._line_count = 0
        self._last_lines: deque[str] = deque(maxlen=_SHOWN_LINES)
        self.unread: list[str] = []
        """Lines with a loss that could not be read as a row, before the first row."""

    def take(self, text: str) -> list[Row]:
        """Return the rows that `text` completes. Lines come with their ends; the last one may be cut off.

        A row that shows no step has an epoch.
        """
        text = (self._rest + text).replace("\r", "\n")
        lines = text.split("\n")
        self._rest = lines.pop()[-_LONGEST_LINE:]
        if len(lines) > _MANY_LINES and self._is_auto and not _RARE.search(text):
            lines = lines[-1 :: -(len(lines) // _MANY_LINES + 1)][::-1]
        return self._rows_in(lines)

    def close(self) -> list[Row]:
        """Return the rows that were still open at the end of the output."""
        rest, self._rest = self._rest, ""
        return [*self._rows_in([rest]), *self._bar.release(at_end=True)]

    def describe(self) -> str:
        """Return a text for people if no row could be read: the last lines that were printed."""
        if not self._line_count:
            return "The program printed nothing."
        lines = "".join(f"\n  {line}" for line in self._last_lines)
        return f"No row of metrics was found in {self._line_count:,} lines. The last ones:{lines}"

    def _rows_in(self, lines: list[str]) -> list[Row]:
        rows: list[Row] = []
        for line in lines:
            if "\x1b" in line:
                line = _CODES.sub("", line)
            if self._form is not None:
                rows += self._form.rows(line)
            # Searching for words is much faster than matching patterns, and most lines have none of them.
            elif '{"' in line:
                rows += _rows_of_json(line)
            elif self._is_auto and ("oss" in line or "%|" in line or "LOSS" in line or "{'" in line):
                rows += self._rows_of_words(line)
        self._has_rows = self._has_rows or bool(rows)
        if not self._has_rows:
            self._note_lines(lines)
        return self._without_repeats(rows) if self._form is not None else rows

    def _note_lines(self, lines: list[str]) -> None:
        for line in filter(None, map(str.strip, lines)):
            self._line_count += 1
            shown = _CODES.sub("", line)[:_SHOWN_WIDTH]
            self._last_lines.append(shown)
            if len(self.unread) < _SHOWN_LINES and _FIGURE.search(shown):
                self.unread.append(shown)

    def _without_repeats(self, rows: list[Row]) -> list[Row]:
        """Return the rows without the last validation loss where NeMo prints it again in every line."""
        for row in rows:
            if "loss" in row and "val_loss" in row:
                if row["val_loss"] == self._validation_loss:
                    del row["val_loss"]
                else:
                    self._validation_loss = row["val_loss"]
        return rows

    def _rows_of_words(self, line: str) -> Iterator[Row]:
        if "%|" in line:
            before = 0
            for found in _BAR.finditer(line):
                if _PREFIXES.fullmatch(line[before : found.start()].rstrip("0123456789")):
                    yield from self._bar.move(int(found[1]), int(found[2]))
                before = line.find("]", found.end()) + 1 or len(line)
            if "oss" not in line[before:]:
                return
        if "{'" in line:
            for found in _DICT.finditer(line):
                yield from self._rows_of_dict(found[0])
        else:
            yield from self._rows_of_plain(line)

    def _rows_of_dict(self, text: str) -> Iterable[Row]:
        texts = {name: single or double or bare for name, single, double, bare in _PAIR.findall(text)}
        row = row_of_figures(texts.items())
        if "train_runtime" in texts or not {"loss", "val_loss", "reward"} & row.keys():
            return ()  # the summary of the Hugging Face trainer, or no row of it
        return [row] if "step" in row else self._bar.hold(row)

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
            row["train_loss"] = row.pop(
                "loss"
            )  # nanoGPT's, estimated beside the validation; not that of a step
        yield {"step": self._step, **row}


class _HuggingFaceBar:
    """The progress bar of the Hugging Face trainer, which gives its rows their steps.

    The trainer prints a row, and then draws the bar again with the row's step. The bar before the row may be
    late, because fast steps do not draw it. Bars of an evaluation have no title either, but another total.
    Rows that come together, apart from their bars, were buffered: they have only their epoch.
    """

    def __init__(self) -> None:
        self._total: int | None = None
        self._done = 0
        self._rows: list[Row] = []
        self._is_late = self._has_placed = False

    def hold(self, row: Row) -> list[Row]:
        """Keep a row until the next bar; return rows whose step no bar can show."""
        if self._total is None:
            return [row]
        self._rows.append(row)
        self._is_late = self._is_late or len(self._rows) > 2
        return self.release(at_end=False) if self._is_late else []

    def move(self, done: int, total: int) -> list[Row]:
        """Read a bar; return the rows to which it gives a step."""
        if self._total is None or any("loss" in row for row in self._rows):
            self._total = total
        if total != self._total:
            return []
        self._done = done
        rows, self._rows = [{**row, "step": done} for row in self._rows], []
        self._has_placed = self._has_placed or bool(rows)
        return rows

    def release(self, *, at_end: bool) -> list[Row]:
        """Return the rows that wait for a bar; at the end a single row gets the step of the last bar."""
        rows, self._rows = self._rows, []
        if at_end and rows and self._done and not self._has_placed and not self._is_late:
            rows[-1]["step"] = self._done
        return rows


def _plain_figures(line: str) -> Row:
    """Return the losses of a line and what stands beside them; empty without a loss.

    A loss with a comma and no point is not guessed: the comma may be that of decimals.
    """
    row: Row = {}
    for kind, name, text in _FIGURE.findall(line):
        kind, name = kind.lower(), name.lower().replace(" ", "_")
        if kind == "test" or (value := read_number(text)) is None or ("," in text and "." not in text):
            continue
        figure = "learning_rate" if name.startswith("l") and name != "loss" else "grad_norm"
        if name == "loss":
            figure = "val_loss" if kind.startswith(("val", "eval")) else "loss"
        row.setdefault(figure, value)
    return row if "loss" in row or "val_loss" in row else {}


def _rows_of_json(line: str) -> Iterator[Row]:
    """Yield the row of each JSON object in a line that has a step or an epoch, or a loss, and a figure."""
    if line.startswith('{"') and (whole := parse_json_line(line.encode())) is not None:
        row = row_of_figures(flat_figures(whole))
        if has_figures(row):
            yield row
        return
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
