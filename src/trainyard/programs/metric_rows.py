"""Merge the rows of a program from all of its sources, and write them into `metrics.jsonl`.

    declared ┐
    structured (files) ├──> one table a source ──the best one that counts steps is the axis──> rows
    observed ┤                                └──figures that it lacks, from tables of the same unit─┘
    printed  ┘                                └──figures of an epoch ──> rows without a step

Each figure of the record has one source. A worse source never adds a step to a better one, and printed steps
that do not agree with the axis are no rows. When a better source appears, the rows of this attempt are
written anew from its history. If nothing counts steps, whole epochs do. A loss that files have only at a few
validations is `train_loss` beside the observed one: one series never mixes two measures. A loss that is not
finite counts in every source; in printed lines of another unit, if their first losses are the observed ones.

A program that resumes, or that starts again within an attempt, trains steps again. A row with another loss
replaces the old one and drops the later ones of its source, because the new rows belong to the model that is
kept. A row that shows a fault is never dropped.
"""

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from pathlib import Path

from trainyard.programs.metrics.figure_names import JUDGED
from trainyard.programs.sources import Source
from trainyard.run.atomic_files import write_bytes_atomically
from trainyard.run.records import RecordWriter, Row, append_rows, line_of_row, read_rows
from trainyard.run.source_words import describe_count

ORDER = (Source.DECLARED, Source.STRUCTURED, Source.OBSERVED, Source.PRINTED)
"""The sources of rows, the best first: a log of the program's own says more than its optimizer's steps."""
OPTIMIZER_STEPS = "optimizer_steps"
_PRINTED_STEP = "printed_step"
_PLACES = frozenset(("step", "epoch", "time"))
_MOST_TIMES = 10_000
# The proof judges no fewer losses than these.
_FEWEST_LOSSES = 10
# So many losses that are equal to the digit, and not all the same, are not equal by chance.
_FIRST_LOSSES = 3
# A program prints its losses with at least three digits.
_PRINTED_DIGITS = 1e-3
# Two sources that count the same thing are this close to each other, as a share; their times are not exact.
_CLOSE = 0.1


@dataclass(frozen=True)
class LastRow:
    step: int
    time: float
    """When its row came, in Unix seconds."""
    source: Source


class SourceTable:
    """The rows of one source in this attempt: by step, in order, and those without a step by epoch."""

    def __init__(self) -> None:
        self.rows: dict[int, Row] = {}
        self.epochs: dict[float, Row] = {}
        self.names: set[str] = set()
        """The figures of rows with a step."""
        self.newest = self.gap = 0
        """The last step, and the largest distance of two."""
        self.has_text = False
        """Whether a figure of them is not finite, or no number."""
        self._times: deque[tuple[float, int]] = deque(maxlen=_MOST_TIMES)
        """When the rows came, in Unix seconds, and their steps."""

    def add(self, row: Row) -> int | None:
        """Add a row, with its `time`; return the first step whose row it changes, None if that is none."""
        if (step := row.get("step")) is None:
            self.epochs.setdefault(row.get("epoch", 0), {}).update(row)
            return None
        known = self.rows.get(step)
        if known is not None and not _has_other_loss(known, row):
            news = {
                name: value
                for name, value in row.items()
                if name not in known or (isinstance(value, str) and not isinstance(known[name], str))
            }
            known |= news
            if not news:
                return None
        else:
            if known is None and (step > self.newest or not self.rows):
                self.gap = max(self.gap, step - self.newest) if self.rows else 0
                self.rows[step] = row
            else:
                self._insert(step, row)
            self.newest = next(reversed(self.rows))
            self._times.append((row["time"], step))
        if not row.keys() <= self.names:
            self.names |= row.keys() - _PLACES
        return int(step)

    def _insert(self, step: int, row: Row) -> None:
        """Put a row before later ones, which are dropped if it shows that their steps are trained again."""
        later = []
        while self.rows and next(reversed(self.rows)) > step:
            later.append(self.rows.popitem())
        if step not in self.rows or row_fault(row) or not row_fault(self.rows[step]):
            self.rows[step] = row
        is_again = "loss" in row and not row_fault(row)
        self.rows.update(pair for pair in reversed(later) if not is_again or row_fault(pair[1]))

    @property
    def last_time(self) -> float:
        """When its last row came, in Unix seconds; 0 without rows."""
        return self._times[-1][0] if self._times else 0.0

    def steps_at(self, moment: float) -> tuple[int, int]:
        """Return the last step that had come by then, and the last of the next ones that came together."""
        times = [time for time, _ in self._times]
        place = bisect_right(times, moment)
        after = bisect_right(times, times[place]) if place < len(times) else place
        return self._times[place - 1][1] if place else 0, self._times[after - 1][1] if after else 0


class MetricRows:
    def __init__(self, *, resumed_at: int = 0, earlier_source: str | None = None) -> None:
        """`earlier_source` is that of the loss in the attempt that this one resumes."""
        self.tables = {source: SourceTable() for source in ORDER}
        self._resumed_at, self._earlier_source = resumed_at, earlier_source
        self.earlier_losses: dict[int, object] = {}
        """The losses of earlier attempts, by step."""
        self.axis: Source | None = None
        """The source that counts the steps."""
        self.counts_epochs = False
        """Whether whole epochs are the steps, because nothing else counts."""
        self._owners: dict[str, Source] = {}
        self._shifts: dict[Source, int] = {}
        """The sources whose steps are those of the axis, with what is added to theirs."""
        self._changed: set[tuple[Source, int]] = set()
        self.is_anew = False
        """Whether it was seen that the program did not resume, unless it declares its steps itself."""
        self._is_forgotten = self._is_over = False

    def forget(self, source: Source) -> None:
        self.tables[source], self._is_forgotten = SourceTable(), True
        self._changed = {each for each in self._changed if each[0] is not source}

    def add_all(self, rows: Iterable[Row], source: Source, moment: float) -> int:
        """Add rows that came at a time in Unix seconds, if they have none; return how many."""
        table, count = self.tables[source], 0
        for row in rows:
            count += 1
            row.setdefault("time", moment)
            table.has_text = table.has_text or str in map(type, row.values())
            if (step := table.add(row)) is not None:
                self._changed.add((source, step))
        return count

    @property
    def newest(self) -> int:
        """The last step; 0 without any."""
        if self.counts_epochs:
            return max(self._steps_of_epochs())
        # A file may be written late: what the optimizer did since is not open.
        last = (Source.OBSERVED, self.axis) if self.axis is Source.STRUCTURED else (self.axis,)
        return max((self.tables[s].newest + n for s, n in self._shifts.items() if s in last), default=0)

    @property
    def last(self) -> "LastRow | None":
        """The last row on the axis; None without any."""
        if self.axis is None:
            return None
        table = self.tables[self.axis]
        rows = self._steps_of_epochs() if self.counts_epochs else table.rows
        moment = max(float(row["time"]) for row in rows.values())
        return LastRow(self.newest, moment, self._counter or self.axis)

    @property
    def first(self) -> int | None:
        """The first step of this attempt; None if it is not known: a file may repeat earlier steps."""
        if self.is_anew and self.axis is not Source.DECLARED:
            return 1
        if self.axis in (None, Source.STRUCTURED) or self.counts_epochs:
            return None
        assert self.axis is not None
        return min(self.tables[self.axis].rows) + self._shifts[self.axis]

    @property
    def reach(self) -> int | None:
        """The step up to which the rows show that the program has come; None if they do not count steps.

        A program that logs every 500 steps may save at 1,200: one distance of rows is added.
        """
        if self.axis is None or self.counts_epochs:
            return None
        table = self.tables[self.axis]
        return self.newest + max(table.gap, min(table.rows) + self._shifts[self.axis] - self._resumed_at)

    @property
    def _counter(self) -> Source | None:
        """The source of the last step: the observer, after the last row of a file."""
        if self.axis is Source.STRUCTURED and not self.counts_epochs:
            is_later = self.newest > self.tables[self.axis].newest + self._shifts[self.axis]
            return Source.OBSERVED if is_later else self.axis
        return self.axis

    @property
    def sources(self) -> dict[str, str]:
        """The source of the steps and of each figure."""
        steps = {} if self._counter is None else {"steps": self._counter}
        return {name: str(source) for name, source in (steps | dict(sorted(self._owners.items()))).items()}

    @property
    def optimizer_shift(self) -> int | None:
        """What is added to the steps of an optimizer to get those of the record; None for another unit."""
        if self.axis is None:
            return 0 if self.is_anew else self._resumed_at
        return None if self.counts_epochs else self._shifts.get(Source.OBSERVED)

    def step_before(self, moment: float) -> int:
        """Return the last step that had come at a time in Unix seconds, a guess; 0 if none had."""
        if self.axis is None or self.counts_epochs:
            return 0
        before = self.tables[self.axis].steps_at(moment)[0]
        return before + self._shifts[self.axis] if before else 0

    def changed_steps(self, limit: int) -> list[int]:
        """Return the steps whose rows have changed since the last call; those beyond `limit` stay changed."""
        known = {each: each[1] + self._shifts[each[0]] for each in self._changed if each[0] in self._shifts}
        self._changed = {each for each, step in known.items() if step > limit}
        return sorted({step for step in known.values() if step <= limit})

    def settle(self, *, is_over: bool) -> bool:
        """Decide what counts and which figures come from where; return whether that has changed.

        At the end (`is_over`) it depends on what came from each source, and not on the order of the sources.
        """
        before = self.axis, self.counts_epochs, self._owners, self._shifts
        is_other, self._is_forgotten, self._is_over = self._is_forgotten, False, is_over
        counting = [source for source in ORDER if self.tables[source].rows]
        self.axis, self._shifts = (counting[0] if counting else None), {}
        whole = [s for s in ORDER if (epochs := self.tables[s].epochs) and all(e == int(e) for e in epochs)]
        self.counts_epochs = self.axis is None and bool(whole)
        if self.counts_epochs:
            self.axis = whole[0]
        for source in counting:
            if (shift := self._shift_of(source, is_over=is_over)) is not None:
                self._shifts[source] = shift
        self._owners = {}
        for source in ORDER:
            table, is_seen = self.tables[source], source in self._shifts or source is Source.OBSERVED
            names = {name for row in table.epochs.values() for name in row}
            names |= table.names if is_seen else set()
            self._owners = dict.fromkeys(names - _PLACES, source) | self._owners
        for source in reversed(self._shifts):  # a figure of steps goes before one of epochs
            self._owners |= dict.fromkeys(self.tables[source].names, source)
        if self._has_few_losses():
            self._owners |= {"loss": Source.OBSERVED, "train_loss": Source.STRUCTURED}
        return is_other or (self.axis, self.counts_epochs, self._owners, self._shifts) != before

    def _has_few_losses(self) -> bool:
        """Return whether files have too few losses to judge, and the observer saw enough of the same steps.

        An attempt that resumes another keeps the source of its loss.
        """
        if self._owners.get("loss") is not Source.STRUCTURED or Source.OBSERVED not in self._shifts:
            return False
        if self._earlier_source is not None:
            return self._earlier_source == Source.OBSERVED and "loss" in self.tables[Source.OBSERVED].names
        rows = (self.tables[each].rows.values() for each in (Source.STRUCTURED, Source.OBSERVED))
        with_loss = ((row for row in some if "loss" in row) for some in rows)
        written, seen = (len(list(islice(some, _FEWEST_LOSSES))) for some in with_loss)
        return written < _FEWEST_LOSSES <= seen

    def _shift_of(self, source: Source, *, is_over: bool) -> int | None:
        """Return what is added to the steps of a source to get those of the axis; None for another unit.

        A process counts the steps of its optimizer from its own start. When a line was printed is not known,
        only when it was read, so printed steps are of the unit if they end where the axis ends.
        """
        assert self.axis is not None
        table = self.tables[source]
        if source is not self.axis:
            axis, base = self.tables[self.axis], self._shifts[self.axis]
            if source is Source.PRINTED:
                return 0 if _end_together(axis, base, table) else None
            shifts = (0, self._resumed_at) if source is Source.OBSERVED and not self.is_anew else (0,)
            fits = [shift for shift in shifts if _are_of_one_unit(axis, base, table, shift)]
            # Both fit where the rows of a file come together: the one that is nearer now is right.
            return min(fits, key=lambda shift: abs(axis.newest + base - table.newest - shift), default=None)
        if source is not Source.OBSERVED or self.is_anew or self._repeats_start(table):
            return 0
        printed = self.tables[Source.PRINTED]  # it may show that the program started anew
        is_anew = is_over and _end_together(table, 0, printed)
        return 0 if is_anew and not _end_together(table, self._resumed_at, printed) else self._resumed_at

    def _repeats_start(self, table: SourceTable) -> bool:
        """Return whether the first losses equal those of the run's first steps: it did not resume."""
        losses = {step: row.get("loss") for step, row in islice(table.rows.items(), _FIRST_LOSSES)}
        is_known = len(losses) == _FIRST_LOSSES and None not in losses.values()
        return is_known and len({*losses.values()}) > 1 and losses.items() <= self.earlier_losses.items()

    def _are_printed_as_observed(self) -> bool:
        """Return whether the first printed losses are those of the optimizer's steps, and so of the training.

        Its lines go beyond the optimizer's steps if it leaves out batches, such as those with a loss of NaN.
        Programs count from 0 or from 1, and a process that resumes counts its own steps.
        """
        printed, observed = self.tables[Source.PRINTED], self.tables[Source.OBSERVED].rows
        before = self._resumed_at
        for shift in (0, 1, -before, 1 - before) if printed.has_text else ():
            pairs = ((row, observed.get(step + shift, {})) for step, row in printed.rows.items())
            losses = ((one.get("loss"), other.get("loss")) for one, other in pairs)
            known = (
                (float(one), float(two))
                for one, two in losses
                if isinstance(one, int | float) and isinstance(two, int | float)
            )
            first = list(islice(known, _FIRST_LOSSES))
            is_known = len(first) == _FIRST_LOSSES and len({one for one, _ in first}) > 1
            if is_known and all(math.isclose(*pair, rel_tol=_PRINTED_DIGITS) for pair in first):
                return True
        return False

    def _steps_of_epochs(self) -> dict[int, Row]:
        """Return the rows by the number of epochs done; programs count from 0 or from 1."""
        assert self.axis is not None
        epochs = self.tables[self.axis].epochs
        more = int(min(epochs) <= self._resumed_at)
        return {int(epoch) + more: row for epoch, row in epochs.items()}

    def rows(self) -> Iterator[Row]:
        """Yield the rows with a step, in order."""
        if self.counts_epochs:
            yield from ({"step": step, **row} for step, row in sorted(self._steps_of_epochs().items()))
            return
        steps = {step + shift for source, shift in self._shifts.items() for step in self.tables[source].rows}
        yield from filter(None, map(self.row, sorted(steps)))

    def row(self, step: int) -> Row | None:
        """Return the row of a step, each figure from its source; None if the record has none."""
        if self.axis is not None and list(self._shifts.values()) == [0]:
            return self.tables[self.axis].rows.get(step)
        row: Row = {}
        is_row = False
        last = 0 if self.axis is None else self.tables[self.axis].newest + self._shifts[self.axis]
        is_renamed = self._owners.get("train_loss") is Source.STRUCTURED
        for source, shift in self._shifts.items():
            if (found := self.tables[source].rows.get(step - shift)) is None:
                continue
            is_row = is_row or source is self.axis
            for name, value in found.items():
                if _is_fault(name, value):
                    row[name] = value
                    continue
                if is_renamed and name == "loss" and source is Source.STRUCTURED:
                    name = "train_loss"
                # A file may be written late: until the end the observer shows what has come since.
                is_shown = self._owners.get(name, source) is source or (step > last and not self._is_over)
                if name not in row and is_shown:
                    row[name] = value
        row["step"] = step
        return row if is_row or (row.keys() - _PLACES and step <= self.newest) else None

    def rows_beside(self) -> Iterator[Row]:
        """Yield rows for figures without a step: of epochs, or of an optimizer of another unit."""
        for source in ORDER:
            if self.counts_epochs and source is self.axis:
                continue
            table, is_of_axis = self.tables[source], source in self._shifts
            own = {name for name, owner in self._owners.items() if owner is source}
            own -= table.names if is_of_axis else set()
            places = {("epoch", epoch): row for epoch, row in table.epochs.items()}
            if source is Source.PRINTED and not is_of_axis and self._are_printed_as_observed():
                places |= {(_PRINTED_STEP, step): row for step, row in table.rows.items()}
            if source is Source.OBSERVED and not is_of_axis and (own & table.names or table.has_text):
                places |= {(OPTIMIZER_STEPS, step): row for step, row in table.rows.items()}
            for (name, place), row in places.items():
                if figures := {key: row[key] for key in row if key in own or _is_fault(key, row[key])}:
                    yield {name: place, **figures, "time": row["time"]}


class MetricRowWriter:
    """Writes the merged rows into a file, in blocks."""

    def __init__(
        self,
        path: Path,
        *,
        resumed_at: int = 0,
        earlier_source: str | None = None,
        on_other_row: Callable[[int], None] = lambda _: None,
    ) -> None:
        """`on_other_row` is called with the first step up to `resumed_at` whose row differs from the old one.

        This shows that the program did not resume after `resumed_at`.
        """
        self.merged = MetricRows(resumed_at=resumed_at, earlier_source=earlier_source)
        self._path = path
        self._resumed_at, self._on_other_row = resumed_at, on_other_row
        self._earlier: list[Row] | None = None
        """The rows of earlier attempts."""
        self._written = self._held = 0
        """The last step in the file, and the one that waits."""
        self._beside: list[Row] = []
        """The rows without a step in the file."""
        self._has_rows = False
        """Whether this attempt has had a row."""
        self.fault: str | None = None
        """The first fault that a row of this attempt shows; one of a step goes before those without."""
        self._fault_has_step = False
        self.last_row: Row = {}
        """The last value of each figure."""

    @property
    def newest(self) -> int:
        """The last step, also of an earlier attempt."""
        return self.merged.newest or self._written

    def write(self, *, is_over: bool = False) -> None:
        """Write what was added. The newest row waits for the next call, because it may be completed."""
        if self._earlier is None:
            RecordWriter(self._path).close()  # drops a line that was cut off
            self._earlier = read_rows(self._path)
            self._written = max((row["step"] for row in self._earlier if "step" in row), default=0)
            self.merged.earlier_losses = losses_by_step(self._earlier)
        tables = self.merged.tables.values()
        self._has_rows = self._has_rows or any(each.rows or each.epochs for each in tables)
        if not self._has_rows:
            return  # the file may have the rows of another node
        is_other, limit = self.merged.settle(is_over=is_over), self.merged.newest
        if limit != self._held and not is_over:
            self._held, limit = limit, limit - 1
        beside = list(self.merged.rows_beside())
        beside = beside if is_over else beside[:-1]
        new = self.merged.changed_steps(limit)
        known = len(self._beside)
        is_other = is_other or self.merged.counts_epochs or beside[:known] != self._beside
        # At the end all is written anew: then nothing depends on when which part was read.
        if is_over or is_other or (new and new[0] <= self._written):
            self._write_anew(beside, limit, is_over=is_over)
        else:
            rows = [row for step in new if (row := self.merged.row(step)) is not None]
            self._append(list(_in_order_of_time(rows, beside[known:])))
        self._written, self._beside = max([self._written, *new]), beside

    def _write_anew(self, beside: list[Row], limit: int, *, is_over: bool) -> None:
        """Write the complete file: the rows of earlier attempts up to where this one differs, and its own."""
        assert self._earlier is not None
        known = {row["step"]: row for row in self._earlier if "step" in row}
        own = [row for row in self.merged.rows() if row["step"] <= limit]
        again = ((row["step"], row) for row in own if row["step"] <= max(known, default=-1))
        unknown: Row = {"loss": None}
        other = next((at for at, row in again if _has_other_loss(known.get(at, unknown), row)), None)
        # Printed steps may be of another thing, until it is certain that nothing better counts.
        is_certain = self.merged.axis is not Source.PRINTED or is_over
        if other is not None and is_certain and self._resumed_at and other <= self._resumed_at:
            self._on_other_row(other)
            self._resumed_at = 0
        # A program may print the step that it resumes after once more; its fault stays.
        first = own[0]["step"] if own else None
        kept = [
            row
            for row in self._earlier
            if other is None or row.get("step", 0) < other or (row.get("step") == first and row_fault(row))
        ]
        names = {row["step"] for row in kept if "step" in row}
        news = {row["step"]: row for row in own if row["step"] in names}
        self.fault, self._fault_has_step, self.last_row = None, False, {}
        kept = [{**news.get(row.get("step", -1), {}), **row} for row in kept]
        own = [row for row in own if row["step"] not in names]
        write_bytes_atomically(self._path, "".join(map(line_of_row, kept)).encode())
        self._append(list(_in_order_of_time(own, beside)))

    def _append(self, rows: list[Row]) -> None:
        for row in rows:
            self.last_row |= row
            is_wanted = self.fault is None or (not self._fault_has_step and "step" in row)
            if is_wanted and (fault := row_fault(row)):
                self.fault, self._fault_has_step = fault, "step" in row
        if rows:
            append_rows(self._path, rows)


def losses_by_step(rows: Iterable[Row]) -> dict[int, object]:
    return {row["step"]: row["loss"] for row in rows if "step" in row and "loss" in row}


def add_missing_rows(path: Path, rows: Iterable[Row], *, last: int) -> None:
    """Insert those of `rows` up to step `last` whose step is not recorded yet, in order."""
    before = read_rows(path)
    known = {row.get("step") for row in before}
    if not (found := [row for row in rows if row["step"] <= last and row["step"] not in known]):
        return
    placed, step = list[tuple[int, Row]](), 0
    for row in (*before, *found):  # one without a step stays behind the one that it follows
        step = row.get("step", step)
        placed.append((step, row))
    ordered = (line_of_row(row) for _, row in sorted(placed, key=itemgetter(0)))
    write_bytes_atomically(path, "".join(ordered).encode())


def _in_order_of_time(rows: list[Row], beside: list[Row]) -> Iterator[Row]:
    """Yield the rows with a step in their order, and the others where their time belongs."""
    waiting = deque(sorted(beside, key=itemgetter("time")))
    for row in rows:
        while waiting and waiting[0]["time"] < row["time"]:
            yield waiting.popleft()
        yield row
    yield from waiting


def _are_of_one_unit(one: SourceTable, more: int, other: SourceTable, more_of_other: int) -> bool:
    """Return whether two sources count the same thing: at one time they were at about the same step."""
    moment = min(one.last_time, other.last_time)
    if not moment:
        return False
    (low, high), (other_low, other_high) = one.steps_at(moment), other.steps_at(moment)
    apart = max(low + more - (other_high + more_of_other), other_low + more_of_other - (high + more))
    return apart <= max(one.gap, other.gap, _CLOSE * (high + more))


def _end_together(axis: SourceTable, more: int, printed: SourceTable) -> bool:
    """Return whether the last printed step is about that of the axis."""
    last = axis.newest + more
    return bool(printed.rows) and abs(last - printed.newest) <= max(axis.gap, printed.gap, _CLOSE * last)


def _has_other_loss(known: Row, row: Row) -> bool:
    """Return whether a step was trained again: both rows have a loss, and the losses differ."""
    return "loss" in known and "loss" in row and known["loss"] != row["loss"]


def _is_fault(name: str, value: object) -> bool:
    return isinstance(value, str) and name in JUDGED


def row_fault(row: Row) -> str | None:
    """Return why a row shows that the training failed, or None.

    A loss of 0 is none: the trainer of Hugging Face prints NaN so, but then the gradient norm is not finite.
    """
    names = [name for name in ("step", "epoch", OPTIMIZER_STEPS, _PRINTED_STEP) if name in row]
    place = f"{names[0].replace('_', ' ').removesuffix('s')} {row[names[0]]:,}" if names else "a row"
    for name, words in JUDGED.items():
        value = row.get(name, 0.0)
        if not isinstance(value, int | float) or not math.isfinite(value):
            return f"{place}: the {words} is {value}, which is not finite"
    if row.get("nan_steps"):
        return f"{place}: {describe_count(row['nan_steps'], 'step')} had a loss that is not finite"
    return None
