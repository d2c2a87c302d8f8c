"""Read rows of metrics from what a training program prints, stdout and stderr merged.

    text ──CR, LF──> lines ──ANSI codes off──> JSON | the Hugging Face trainer's | words

This is the last of all sources, for programs of which nothing else is known: no total is read, no number is
guessed, and of a flood of lines only some are rows.
"""

import json
import re
from collections.abc import Iterator

from trainyard.programs.metrics.figure_names import (
    NUMBER,
    flat_figures,
    has_figures,
    read_number,
    row_of_figures,
)
from trainyard.run.records import Row

_CODES = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|\][^\x07]*\x07)")
_LONGEST_LINE, _MOST_OBJECTS = 1 << 16, 16
# Of more lines that come at once, which is a flood, only some are read, unless one of them may be a
# validation or has a number that is not finite.
_MANY_LINES = 500
_RARE = re.compile(r"val|nan|inf\b", re.I)
_SHOWN = frozenset(("loss", "val_loss", "reward"))
"""The figures without which a line in words is no row."""
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
# verl's lines: `step:10 - actor/pg_loss:0.1 - critic/score/mean:np.float64(0.5)`.
_LISTED = re.compile(r"(?<![\w./])step:(\d{1,12}) - ")
_LISTED_PAIR = re.compile(r"(\S+?):(\S+\([^()]*\)|\S+)")
_BARS = re.compile(r".*%\|[^\]]*\]?")
_DICT = re.compile(r"\{'[^{}]*\}")
_PAIR = re.compile(r"'([^']+)': (?:'([^']*)'|\"([^\"]*)\"|([\w.]+\([^()]*(?:\([^()]*\)[^()]*)*\)|[^,{}]+))")
# A key that is given twice leaves it open which figure is right: its object has none.
_DECODER = json.JSONDecoder(
    object_pairs_hook=lambda pairs: found if len(found := dict(pairs)) == len(pairs) else {}
)


class LogReader:
    """Reads the output of one start of a program."""

    def __init__(self) -> None:
        self._rest = ""
        self._step = self._offset = self._epoch = 0

    def take(self, text: str) -> list[Row]:
        """Return the rows that `text` completes. Lines come with their ends; the last one may be cut off.

        A row that shows no step has an epoch.
        """
        text = (self._rest + text).replace("\r", "\n")
        lines = text.split("\n")
        self._rest = lines.pop()[-_LONGEST_LINE:]
        if len(lines) > _MANY_LINES and not _RARE.search(text):
            lines = lines[-1 :: -(len(lines) // _MANY_LINES + 1)][::-1]
        return list(self._rows_in(lines))

    def close(self) -> list[Row]:
        """Return the row of a last line without its end."""
        return self.take("\n")

    def _rows_in(self, lines: list[str]) -> Iterator[Row]:
        for line in lines:
            if "\x1b" in line:
                line = _CODES.sub("", line)
            # Searching for words is much faster than matching patterns, and most lines have none of them.
            if '{"' in line:
                yield from _rows_of_json(line)
            elif "{'" in line:
                yield from filter(None, map(_row_of_dict, _DICT.findall(line)))
            elif any(word in line for word in ("oss", "LOSS", "eward")):
                yield from self._rows_of_plain(_BARS.sub("", line) if "%|" in line else line)

    def _rows_of_plain(self, line: str) -> Iterator[Row]:
        """Yield the row of a line in words, as training loops of people's own print it.

        Steps that restart in each epoch are counted on. A line with an epoch alone is a row of the epoch.
        """
        if listed := _LISTED.search(line):
            row = row_of_figures(_LISTED_PAIR.findall(line, listed.end()))
            if _SHOWN & row.keys():
                yield {**row, "step": int(listed[1])}
                return
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
    return row if "train_runtime" not in texts and _SHOWN & row.keys() else None


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
    return row if _SHOWN & row.keys() else {}


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
