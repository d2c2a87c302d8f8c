"""Read rows of metrics from what a training program prints, stdout and stderr merged.

    text ──CR, LF──> pieces ──ANSI codes off, marks──> one form after another ──> rows

Patterns of one line are in `log_forms`. Here are the forms that need more than one line: progress bars, the
Hugging Face trainer, whose rows have no step, and the blocks of Composer and OLMo-core.
"""

import re
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from trainyard.errors import ConfigError
from trainyard.programs.metrics.figure_names import figure_of, is_about_training, row_of_figures
from trainyard.programs.metrics.log_forms import LINE_FORMS, NUMBER
from trainyard.programs.metrics.printed_numbers import read_figure, read_number
from trainyard.run.records import Row

AUTO = "auto"
_STATEFUL = {
    "hf": "{'loss': 2.31, 'grad_norm': 0.5, 'learning_rate': 0.001, 'epoch': 0.1}",
    "lightning": "Epoch 0: 50%|█████     | 5/10 [00:01<00:01, 4.9it/s, train_loss=2.31]",
    "diffusers": "Steps: 50%|█████     | 5/10 [00:01<00:01, 4.9it/s, lr=0.001, step_loss=2.31]",
    "composer": "[batch=10/500]: and then Train loss/train/total: 2.31",
    "olmo": "[step=10/500,epoch=1] and then train/CE loss=2.31",
    "plain": "step 10: loss 2.31, or epoch 1 | 10/500 | loss 2.31; iteration and val loss as well",
    "epochs": "epoch 1: loss 2.31, val loss 2.40; an epoch is a step if nothing else has steps",
}
FORMS = (*_STATEFUL, *LINE_FORMS)
"""The names of all forms."""

_PLAIN = re.compile(
    r"\b(?:global[ _])?(?:step|iter(?:ation)?)s?\b\s*[:=#\[(]?\s*(\d{1,12})(?:\s*(?:/|of)\s*(\d{1,12}))?\b",
    re.I,
)
_PLAIN_FIGURE = re.compile(
    r"(?<![\w/])(?:(train(?:ing)?|val(?:id(?:ation)?)?|eval(?:uation)?|test)[ _/-]*)?"
    rf"(loss|lr|learning[ _]rate|grad(?:ient)?[ _]?norm)\b\s*[:=(]?\s*({NUMBER})",
    re.I,
)
_PLACE_IN_EPOCH = re.compile(
    r"\bepoch\b\s*(?:(:\s*\[)|[:=#\[(])?\s*(\d{1,9})\b(?:\s*(?:/|of)\s*(\d{1,9}))?"
    r"(?:[^\w/]*(?:batch(?:es)?\b[^\w/]*)?(\d{1,12})\s*(?:/|of)\s*(\d{1,12})\b(?!\s*\())?",
    re.I,
)
"""`Epoch: [0][ 10/500]`, which counts from 0; `| epoch 1 | 20/ 468 batches |`; `Epoch 1/10`.

A bracket behind the place says that it counts samples: `Train Epoch: 1 [640/60000 (1%)]`.
"""
_PLAIN_EPOCH = re.compile(r"\bepoch\b\s*[:=#\[(]?\s*(\d{1,9})", re.I)
_CODES = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|\][^\x07]*\x07)")
_LONGEST_PIECE = 1 << 20
_SHOWN_LINES, _SHOWN_WIDTH = 3, 160

_BAR = re.compile(r"%\|[^|]*\|\s*(\d+)/(\d+) \[([^\]]*)")
_PREFIXES = re.compile(r"(?:\[[^\]]*\]:?|\([^)]*\)|\d+:|\s)*")
_EPOCH = re.compile(r"Epoch (\d+):?\s*$")
_IN_BAR = re.compile(r"([\w/.]+)=([^,\s]+)")
_DICT = re.compile(r"\{'[^{}]*\}")
_PAIR = re.compile(r"'([^']+)': (?:'([^']*)'|\"([^\"]*)\"|([\w.]+\([^()]*(?:\([^()]*\)[^()]*)*\)|[^,{}]+))")
_COMPOSER = re.compile(r"\[(?:epoch=(\d+)\]\[)?batch=(\d+)/(\d+)\]:")
_COMPOSER_VALIDATION = re.compile(r"\[Eval (?:epoch=\d+\]\[)?batch=\d+/\d+\]")
_COMPOSER_FIGURE = re.compile(rf"\b(?:Train|Eval) ([\w/.()-]+): ({NUMBER}|\S+)")
_OLMO = re.compile(r"\[step=([\d,]+)/([\d,]+),epoch=(\d+)")
_OLMO_FIGURE = re.compile(r"\s{4}([A-Za-z]\w*/[^=]+)=(\S.*)$")
_HELD_BLOCKS = 3
"""OLMo-core prints the blocks of a step late and out of order: a row waits for this many newer steps."""

_TOTAL = re.compile(
    r"\bTotal optimization steps ?[=:] ?([\d,]+)|\bTotal steps = ([\d,]+)|\bTotal training steps: ([\d,]+)"
    r"|\bsetting training iterations to (\d+)|\btotal steps (\d+)|\bTraining for ([\d,]+) steps"
    r"|stopped: `?max_steps=(\d+)`? reached"
)
_TOTAL_IN_ROW = {
    "megatron": (re.compile(r"iteration\s+\d+\s*/\s*(\d+)\s*\|"), 0),
    "nemo": (re.compile(r"iteration \d+/(\d+) \|"), 1),  # it prints the last index
    "nanochat": (re.compile(r"step \d+/(\d+) \("), 0),
}


class LogReader:
    """Reads the output of one start of a program."""

    def __init__(self, form: str = AUTO) -> None:
        """`form` is one of FORMS, or `auto` for all. Raises ConfigError for another one."""
        if form != AUTO and form not in FORMS:
            raise ConfigError(f"metrics: {form!r:.80} is no form of a log; use {AUTO}, {', '.join(FORMS)}")
        self._forms = FORMS if form == AUTO else (form,)
        self._lines = {name: LINE_FORMS[name] for name in self._forms if name in LINE_FORMS}
        self._reads_words = "plain" in self._forms or "epochs" in self._forms
        self._rest = ""
        self._seen: dict[str, int] = {}
        self._first_lines: list[str] = []
        self._last_lines: deque[str] = deque(maxlen=_SHOWN_LINES)
        self._line_count = 0
        self._total: int | None = None
        self._bars = _HuggingFaceBar()
        self._summary: dict[str, Any] = {}
        self._diffusers: Row | None = None
        self._lightning: dict[int, Row] = {}
        self._composer: tuple[int, dict[str, str]] | None = None
        self._composer_step = 0
        self._olmo: dict[int, dict[str, str]] = {}
        self._olmo_step: int | None = None
        self._skipped = 0
        self._validation_loss: dict[str, Any] = {}
        self._plain_step = self._plain_offset = self._plain_epoch = 0
        self._has_epoch_zero = False
        self._epochs: dict[int, Row] = {}
        self._epoch_count: int | None = None
        self.unread: list[str] = []
        """Lines with a loss that could not be read as a row, before the first row."""

    @property
    def steps_asked(self) -> int | None:
        """The total of steps that the program printed; None if it printed none."""
        return self._total if self._total is not None or "hf" not in self._seen else self._bars.total

    @property
    def steps_per_epoch(self) -> float | None:
        """Optimizer steps per epoch of the Hugging Face trainer, by its bar or its summary."""
        return self._bars.steps_per_epoch or self._summary_steps_per_epoch()

    @property
    def has_epochs(self) -> bool:
        """Whether rows of epochs wait for the end of the output."""
        return bool(self._epochs)

    @property
    def forms_seen(self) -> tuple[str, ...]:
        """The forms of which rows were read, in the order of their first row."""
        return tuple(self._seen)

    def take(self, text: str) -> list[Row]:
        """Return the rows that `text` completes. Lines come with their ends; the last one may be cut off.

        A row of the Hugging Face trainer has no step if no progress bar shows it.
        """
        text = (self._rest + text).replace("\r", "\n")
        pieces = text.split("\n")
        self._rest = pieces.pop()[-_LONGEST_PIECE:]
        return self._read_pieces(pieces)

    def close(self) -> list[Row]:
        """Return the rows that were still open at the end of the output.

        Rows of Lightning's bar, and rows of epochs, are returned only here, and only if there are no other
        rows: the bar counts batches, which are steps only without gradient accumulation, and Lightning's
        loggers write better files.
        """
        rows = self._read_pieces([self._rest])
        self._rest = ""
        rows += self._bars.release(at_end=True)
        if self._diffusers is not None:
            rows.append(self._diffusers)
            self._diffusers = None
        rows += self._close_composer()
        rows += self._release_olmo(0)
        if self._lightning and set(self._seen) == {"lightning"}:
            rows += [self._lightning[step] for step in sorted(self._lightning)]
            self._lightning = {}
        if self._epochs and not self._seen:
            self._see("epochs", "")
            more = int(0 in self._epochs)
            rows += [{"step": epoch + more, **row} for epoch, row in sorted(self._epochs.items())]
            # If epochs count from 0, the number after the slash may be their count or the last epoch.
            if self._total is None and self._epoch_count is not None and not more:
                self._total = max(self._epoch_count, *self._epochs)
        return rows

    def describe(self) -> str:
        """Return a text for people if no row could be read: the forms and the lines that were printed."""
        if not self._line_count:
            return "The program printed nothing."
        looks = {**_STATEFUL, **{name: form.looks for name, form in LINE_FORMS.items()}}
        first, last = self._first_lines, list(self._last_lines)
        between = self._line_count - len(first) - len(last)
        if between < 0:
            last = last[-between:]
        return "\n".join(
            (
                f"No row of metrics was found in {self._line_count:,} lines. Lines of these forms are rows:",
                *(f"  {name}: {looks[name]}" for name in self._forms),
                "Lines that the program printed:",
                *(f"  {line}" for line in first),
                *([f"  … {between:,} more"] if between > 0 else []),
                *(f"  {line}" for line in last),
                'Print {"step": 10, "loss": 2.31} for each logged step, or name a file of metrics.',
            )
        )

    def _read_pieces(self, pieces: list[str]) -> list[Row]:
        self._note_lines(pieces)
        rows: list[Row] = []
        in_block = self._composer is not None or self._olmo_step is not None
        for piece in pieces:
            # Searching for words is much faster than matching patterns, and most lines have none of them.
            if (
                in_block
                or "loss" in piece
                or "step" in piece
                or "%|" in piece
                or "Loss" in piece
                or '{"' in piece
                or "batch=" in piece
                or " samples" in piece
                or "raining " in piece
                or "bpb" in piece
                or "otal " in piece
                or "stopped" in piece
                or "SIG" in piece
                or "canceled" in piece
                or "KeyboardInterrupt" in piece
            ):
                rows += self._rows_of(_CODES.sub("", piece) if "\x1b" in piece else piece)
                in_block = self._composer is not None or self._olmo_step is not None
        return rows

    def _note_lines(self, pieces: list[str]) -> None:
        if self._seen:  # `describe` is for a program of which no row was read
            return
        for piece in pieces:
            if piece and (plain := (_CODES.sub("", piece) if "\x1b" in piece else piece).strip()):
                self._line_count += 1
                shown = plain[:_SHOWN_WIDTH] + ("…" if len(plain) > _SHOWN_WIDTH else "")
                if len(self._first_lines) < _SHOWN_LINES:
                    self._first_lines.append(shown)
                else:
                    self._last_lines.append(shown)

    def _rows_of(self, line: str) -> Iterable[Row]:
        rows: list[Row] = []
        if "%|" in line:
            rows += self._rows_of_bars(line)
            if line.endswith("]") and line.count("%|") == 1 and "loss" not in line[: line.find("%|")]:
                return rows  # the line is only the bar, as most are
        if "'" in line and "{'" in line and "hf" in self._forms:
            rows += self._rows_of_dicts(line)
        for name, form in self._lines.items():
            for mark in form.marks:
                if mark in line:
                    for row in form.rows(line):
                        self._see(name, line)
                        rows.append(self._without_repeats(name, row))
                    break
        if not rows and self._reads_words and "loss" in line.lower():
            rows += self._rows_of_plain(line)
        if "batch=" in line or self._composer is not None:
            rows += self._rows_of_composer(line)
        if "[step=" in line or self._olmo_step is not None:
            rows += self._rows_of_olmo(line)
        self._read_total(line)
        if not self._seen and not rows and len(self.unread) < _SHOWN_LINES and _PLAIN_FIGURE.search(line):
            self.unread.append(line.strip()[:_SHOWN_WIDTH])
        return rows

    def _see(self, form: str, line: str) -> None:
        self._seen[form] = self._seen.get(form, 0) + 1
        if self._total is None and form in _TOTAL_IN_ROW:
            pattern, more = _TOTAL_IN_ROW[form]
            if found := pattern.search(line):
                self._total = int(found[1]) + more

    def _read_total(self, line: str) -> None:
        if (
            "otal optimization steps" in line
            or "otal steps" in line
            or "otal training steps" in line
            or "training iterations to" in line
            or "Training for " in line
            or "max_steps=" in line
        ) and (found := _TOTAL.search(line)):
            self._total = int(next(filter(None, found.groups())).replace(",", ""))

    def _without_repeats(self, form: str, row: Row) -> Row:
        """Return the row without a repeated validation loss, and with the skipped steps since the last row.

        NeMo prints the last validation loss in every line; DeepSpeed prints the total of skipped steps.
        """
        if form == "nemo" and "val_loss" in row:
            if self._validation_loss.get(form) == row["val_loss"]:
                del row["val_loss"]
            else:
                self._validation_loss[form] = row["val_loss"]
        elif form == "deepspeed" and "skipped_steps" in row:
            count = row["skipped_steps"]
            row["skipped_steps"], self._skipped = max(0, count - self._skipped), count
        return row

    def _rows_of_bars(self, line: str) -> Iterable[Row]:
        before = 0
        for found in _BAR.finditer(line):
            title = line[before : found.start()].rstrip("0123456789")
            before = found.end()
            done, total, tail = int(found[1]), int(found[2]), found[3]
            if "Epoch " in title and (epoch := _EPOCH.search(title)) is not None:
                if "lightning" in self._forms and "loss" in tail:
                    self._note_lightning(int(epoch[1]) * total + done, tail, line)
            elif "step_loss=" in tail:
                if "diffusers" in self._forms:
                    self._total = total
                    if self._diffusers is not None and self._diffusers["step"] != done:
                        yield self._diffusers
                    self._see("diffusers", line)
                    self._diffusers = {"step": done, **row_of_figures(_IN_BAR.findall(tail))}
            elif "hf" in self._forms and _PREFIXES.fullmatch(title):
                yield from self._bars.move(done, total)

    def _note_lightning(self, step: int, tail: str, line: str) -> None:
        row = row_of_figures(_IN_BAR.findall(tail))
        if "val_loss" in row:
            if self._validation_loss.get("lightning") == row["val_loss"]:
                del row["val_loss"]
            else:
                self._validation_loss["lightning"] = row["val_loss"]
        if step and is_about_training(row):
            self._see("lightning", line)
            before = self._lightning.get(step, {})
            kept = {"val_loss": before["val_loss"]} if "val_loss" in before else {}
            self._lightning[step] = {**kept, **row, "step": step}

    def _rows_of_dicts(self, line: str) -> Iterable[Row]:
        for found in _DICT.finditer(line):
            texts = {name: single or double or bare for name, single, double, bare in _PAIR.findall(found[0])}
            if "train_loss" in texts and "train_runtime" in texts:
                self._summary = {name: read_number(text) for name, text in texts.items()}
                continue
            if any(name.startswith("eval_") for name in texts):
                texts = {name: texts[name] for name in ("eval_loss", "epoch", "step") if name in texts}
            row = row_of_figures(texts.items())
            if not is_about_training(row):
                continue
            self._see("hf", line)
            if "step" in row:
                yield row
            else:
                yield from self._bars.hold(row)

    def _summary_steps_per_epoch(self) -> float | None:
        """Return steps per epoch: by the last bar, or else by the seconds and the rate in the summary."""
        epoch = self._summary.get("epoch")
        spent, rate = self._summary.get("train_runtime"), self._summary.get("train_steps_per_second")
        if not isinstance(epoch, float) or epoch <= 0:
            return None
        if self._bars.total is not None:
            return self._bars.done / epoch
        if isinstance(spent, float) and isinstance(rate, float):
            return round(spent * rate) / epoch
        return None

    def _rows_of_plain(self, line: str) -> Iterator[Row]:
        """Yield the row of a line in words, as training loops of people's own print it.

        Steps that count from 0 are increased by 1. Steps that restart in each epoch are counted on.
        """
        row = {} if "'" in line else _plain_figures(line)
        if "loss" not in row and "val_loss" not in row:
            return
        if (place := _PLAIN.search(line)) is None or "plain" not in self._forms:
            if "%|" not in line and (found := _PLACE_IN_EPOCH.search(line)) is not None:
                yield from self._rows_of_epoch(found, row)
            return
        step, epoch = int(place[1]), _PLAIN_EPOCH.search(line)
        if step == 0 and "plain" not in self._seen:
            self._plain_offset = 1
        if epoch is not None:
            if int(epoch[1]) > self._plain_epoch and step + self._plain_offset <= self._plain_step:
                self._plain_offset = self._plain_step + (step == 0)
            self._plain_epoch = int(epoch[1])
        elif place[2] and self._total is None:
            self._total = int(place[2])
        yield from self._plain_row(step + self._plain_offset, row, line)

    def _plain_row(self, step: int, row: Row, line: str) -> Iterator[Row]:
        if step >= 1:
            self._plain_step = max(step, self._plain_step)
            self._see("plain", line)
            yield {"step": step, **row}

    def _rows_of_epoch(self, place: re.Match[str], row: Row) -> Iterator[Row]:
        """Yield the row of a line with an epoch and no step, if it has a batch or a validation loss.

        A line with an epoch alone is kept for the end: an epoch is a step only if nothing else has steps. The
        total is unknown: such loops print every hundredth batch, and seldom the last one.
        """
        epoch, epochs = int(place[2]), int(place[3]) if place[3] else None
        if "loss" in row:
            self._has_epoch_zero = self._has_epoch_zero or epoch == 0 or (bool(place[1]) and epochs is None)
        if place[4] and "plain" in self._forms:
            batch, batches = int(place[4]), int(place[5])
            if batch == 0 and "plain" not in self._seen:
                self._plain_offset = 1
            before = (epoch - (not self._has_epoch_zero)) * batches
            yield from self._plain_row(before + batch + self._plain_offset, row, place.string)
        elif "plain" in self._seen:
            known = {
                name: value for name, value in row.items() if name == "val_loss" or isinstance(value, str)
            }
            if known:  # an epoch's mean counts only if it is not finite
                yield {"step": self._plain_step, **known}
        elif "epochs" in self._forms:
            self._epoch_count = epochs or self._epoch_count
            known = self._epochs.setdefault(epoch, {})
            known |= {name: value for name, value in row.items() if not isinstance(known.get(name), str)}

    def _rows_of_composer(self, line: str) -> Iterable[Row]:
        if "composer" not in self._forms:
            return
        if found := _COMPOSER.search(line):
            yield from self._close_composer()
            self._composer = (int(found[2]), {})
            if not found[1]:
                self._total = int(found[3])
        elif _COMPOSER_VALIDATION.search(line):
            yield from self._close_composer()
            self._composer = (self._composer_step, {})
        elif self._composer is not None and (figure := _COMPOSER_FIGURE.search(line)):
            self._composer[1].setdefault(figure[1], figure[2])

    def _close_composer(self) -> list[Row]:
        """Return the row of the open block. Its count of batches starts at 0, the number in its head at 1."""
        if self._composer is None:
            return []
        step, texts = self._composer
        self._composer = None
        batch = read_number(texts.get("time/batch", ""))
        row = row_of_figures(texts.items())
        row["step"] = int(batch) + 1 if isinstance(batch, float) else step
        if not is_about_training(row):
            return []
        self._composer_step = row["step"]
        self._see("composer", "")
        return [row]

    def _rows_of_olmo(self, line: str) -> Iterable[Row]:
        if "olmo" not in self._forms:
            return
        if found := _OLMO.search(line):
            self._olmo_step = int(found[1].replace(",", ""))
            self._total = int(found[2].replace(",", ""))
            self._olmo.setdefault(self._olmo_step, {"epoch": found[3]})
            yield from self._release_olmo(_HELD_BLOCKS)
        elif self._olmo_step is not None and (figure := _OLMO_FIGURE.search(line)):
            name = figure[1]
            if name.startswith("eval/") and name.endswith("CE loss"):
                name = "eval_loss"
            if figure_of(name) is not None and self._olmo_step in self._olmo:
                self._olmo[self._olmo_step].setdefault(name, figure[2])

    def _release_olmo(self, kept: int) -> list[Row]:
        rows = []
        while len(self._olmo) > kept:
            step = min(self._olmo)
            row = row_of_figures(self._olmo.pop(step).items())
            if is_about_training(row):
                self._see("olmo", "")
                rows.append({**row, "step": step})
        return rows


class _HuggingFaceBar:
    """The progress bar of the Hugging Face trainer, which gives its rows their steps.

    The trainer prints a row, and then draws the bar again with the row's step. The bar before the row may be
    late, because fast steps do not draw it. Bars of an evaluation have no title either, but another total.
    """

    def __init__(self) -> None:
        self.total: int | None = None
        self.done = 0
        self.steps_per_epoch: float | None = None
        self._rows: list[Row] = []
        self._is_late = False
        """Whether stdout is buffered, so that several rows arrive together, apart from their bars."""

    def hold(self, row: Row) -> list[Row]:
        """Keep a row until the next bar; return rows whose step no bar can show."""
        if self.total is None:
            return [row]
        self._rows.append(row)
        if len(self._rows) > 2:
            self._is_late = True
        return self.release(at_end=False) if self._is_late else []

    def move(self, done: int, total: int) -> list[Row]:
        """Read a bar; return the rows to which it gives a step."""
        is_trained = any("loss" in row for row in self._rows)
        if self.total is None or is_trained:
            self.total = total
        if total != self.total:
            return []
        self.done = done
        rows, self._rows = self._rows, []
        for row in rows:
            row["step"] = done
            epoch = row.get("epoch")
            if "loss" in row and isinstance(epoch, float) and epoch > 0:
                self.steps_per_epoch = done / epoch
        return rows

    def release(self, *, at_end: bool) -> list[Row]:
        """Return the rows that wait for a bar; at the end the last row gets the step of the last bar."""
        rows, self._rows = self._rows, []
        if at_end and rows and self.done and self.steps_per_epoch is None and not self._is_late:
            rows[-1]["step"] = self.done
        return rows


def _plain_figures(line: str) -> Row:
    row: Row = {}
    for found in _PLAIN_FIGURE.finditer(line):
        kind, name = (found[1] or "").lower(), found[2].lower().replace(" ", "_")
        if kind.startswith("test"):
            continue
        if name == "loss":
            key = "val_loss" if kind.startswith(("val", "eval")) else "loss"
        else:
            key = "learning_rate" if name.startswith("l") else "grad_norm"
        row.setdefault(key, read_figure(found[3]))
    return row
