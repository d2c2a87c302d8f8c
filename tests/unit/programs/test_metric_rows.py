"""One record from sources of different rank: which one counts, what the others fill, what is never a row."""

from pathlib import Path
from typing import Any

import pytest

from trainyard.programs.metric_rows import MetricRowWriter, row_fault
from trainyard.programs.sources import Source
from trainyard.run.records import read_rows

DECLARED, OBSERVED = Source.DECLARED, Source.OBSERVED
STRUCTURED, PRINTED = Source.STRUCTURED, Source.PRINTED
Row = dict[str, Any]


class Attempt:
    """The rows of an attempt, and what is on record."""

    def __init__(self, folder: Path, **options: Any) -> None:
        folder.mkdir(exist_ok=True)
        self.path, self.again = folder / "metrics.jsonl", list[int]()
        self.writer = MetricRowWriter(self.path, on_other_row=self.again.append, **options)
        self.merged = self.writer.merged

    def add(self, source: Source, *rows: Row, at: float = 0.0) -> None:
        """Add rows that came `at` seconds, or each at the second of its own step."""
        for row in rows:
            own = 1.0 + float(row.get("step", row.get("epoch", 0)) or 0)
            self.merged.add_all([dict(row)], source, at or own)

    @classmethod
    def leave(cls, folder: Path, source: Source, *rows: Row) -> None:
        """Leave the rows of an earlier attempt on record."""
        earlier = cls(folder)
        earlier.add(source, *rows)
        earlier.writer.write(is_over=True)

    def record(self, *, is_over: bool = True) -> list[Row]:
        self.writer.write(is_over=is_over)
        return [{k: v for k, v in row.items() if k != "time"} for row in read_rows(self.path)]


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    return Attempt(tmp_path)


def losses(*steps: int, of: float = 1.0, **more: Any) -> list[Row]:
    return [{"step": step, "loss": of / (step + 1), **more} for step in steps]


def test_the_best_source_counts_and_the_others_fill_what_it_lacks(attempt: Attempt) -> None:
    attempt.add(PRINTED, *losses(10, 20, 30, of=7.0, learning_rate=0.5), {"step": 20, "val_loss": 2.5})
    attempt.add(OBSERVED, *losses(*range(1, 31)))
    record = attempt.record()
    assert [(row["step"], row["loss"]) for row in record] == [(step, 1 / (step + 1)) for step in range(1, 31)]
    rates = {row["step"]: row["learning_rate"] for row in record if "learning_rate" in row}
    assert rates == dict.fromkeys((10, 20, 30), 0.5)
    assert [row["step"] for row in record if "val_loss" in row] == [20]
    sources = {"steps": "observed", "loss": "observed", "learning_rate": "printed", "val_loss": "printed"}
    assert attempt.merged.sources == sources


NOISE: dict[str, list[Row]] = {
    "a sanity check": losses(1, 2, 3, 4, 5, of=9.0, val_loss=3.0),
    "the checkpoint of another run": losses(500, of=9.0, val_loss=3.0),
    "shards": losses(1, 2, 3, of=9.0, val_loss=3.0),
    "more steps than were done": losses(*range(0, 2001, 100), of=9.0, val_loss=3.0),
}


def test_printed_steps_of_another_thing_are_no_rows(tmp_path: Path) -> None:
    wrong = list[tuple[object, ...]]()
    for name, rows in NOISE.items():
        for source in (DECLARED, OBSERVED, STRUCTURED):
            for is_first in (True, False):
                attempt = Attempt(tmp_path / f"{name}-{source}-{is_first}")
                for row in rows if is_first else ():
                    attempt.add(PRINTED, row, at=1.0)
                    attempt.record(is_over=False)
                attempt.add(source, *losses(*range(20, 1001, 20)))
                for row in rows if not is_first else ():
                    attempt.add(PRINTED, row, at=1001.0)
                if attempt.record() != losses(*range(20, 1001, 20)) or attempt.merged.newest != 1000:
                    wrong.append((name, source, is_first))
                if attempt.merged.sources != {"steps": source, "loss": source}:
                    wrong.append((name, source, attempt.merged.sources))
    assert not wrong


def test_a_better_source_that_appears_late_rewrites_the_rows_of_this_attempt(tmp_path: Path) -> None:
    Attempt.leave(tmp_path, STRUCTURED, *losses(10, 20))
    attempt = Attempt(tmp_path, resumed_at=20)
    attempt.add(PRINTED, *losses(21, 22, 23, of=9.0))
    attempt.record(is_over=False)
    attempt.add(STRUCTURED, *losses(30, 40), at=41.0)
    assert attempt.record() == losses(10, 20, 30, 40)
    assert attempt.again == []


def test_what_the_optimizer_did_after_a_file_was_written_counts(attempt: Attempt) -> None:
    """trainer_state.json is written with each checkpoint, and the last one may be long ago.

    The observer's loss is shown until the end. It may be another measure, so no verdict sees both.
    """
    attempt.add(OBSERVED, *losses(*range(1, 131), of=9.0, learning_rate=0.1))
    attempt.add(STRUCTURED, *losses(*range(10, 101, 10)), at=101.0)
    assert attempt.record(is_over=False)[-1]["loss"] == 9.0 / 130
    record = attempt.record()
    assert [row["step"] for row in record] == list(range(1, 131))
    assert [row for row in record if "loss" in row] == losses(*range(10, 101, 10), learning_rate=0.1)
    assert (attempt.merged.newest, attempt.merged.sources["steps"]) == (130, "observed")


# name: (losses in files, the source of the loss before a resume, the source of the loss)
FEW_LOSSES = {
    "a few validations": (2, None, "observed"),
    "enough to judge": (10, None, "structured"),
    "a few after a resume from observed ones": (20, "observed", "observed"),
    "a few after a resume from a file's": (2, "structured", "structured"),
}


def test_a_file_with_few_losses_leaves_the_loss_to_the_observer(tmp_path: Path) -> None:
    """A program may write its loss only when it validates: too few to judge, and of another measure."""
    wrong = list[object]()
    for name, (count, earlier, source) in FEW_LOSSES.items():
        attempt = Attempt(tmp_path / name, earlier_source=earlier)
        attempt.add(OBSERVED, *losses(*range(1, 201), of=9.0))
        written = losses(*(200 // count * n for n in range(1, count + 1)), accuracy=0.5)
        attempt.add(STRUCTURED, *written, at=201.0)
        record, found = attempt.record(), attempt.merged.sources
        expected = losses(*range(1, 201), of=9.0) if source == "observed" else written
        if found["loss"] != source or [r["loss"] for r in record if "loss" in r] != [
            r["loss"] for r in expected
        ]:
            wrong.append((name, found, record[:3]))
        beside = [row["train_loss"] for row in record if "train_loss" in row]
        if source == "observed" and beside != [row["loss"] for row in written]:
            wrong.append((name, beside))
        if [row["step"] for row in record if "accuracy" in row] != [row["step"] for row in written]:
            wrong.append((name, "accuracy"))
    assert not wrong


def test_optimizer_steps_are_no_steps_where_a_file_counts_another_unit(attempt: Attempt) -> None:
    """Reinforcement learning counts the steps of its environment; epochs are counted in TensorBoard."""
    attempt.add(OBSERVED, *losses(*range(1, 11)))
    attempt.add(STRUCTURED, *({"step": 4096 * n, "reward": n} for n in (1, 2, 3)), at=10.0)
    record = attempt.record()
    assert [row["step"] for row in record if "step" in row] == [4096, 8192, 12288]
    assert [row["optimizer_steps"] for row in record if "loss" in row] == list(range(1, 11))
    assert (attempt.merged.newest, attempt.merged.sources["loss"]) == (12288, "observed")


@pytest.mark.parametrize("first", [0, 1])
def test_epochs_are_counted_if_nothing_else_is(attempt: Attempt, first: int) -> None:
    rows = [{"epoch": first + n, "loss": 3.0 - n, "accuracy": n / 4} for n in range(3)]
    attempt.add(STRUCTURED, *rows)
    assert attempt.record() == [{"step": n + 1, **row} for n, row in enumerate(rows)]
    assert (attempt.merged.newest, attempt.merged.counts_epochs) == (3, True)
    assert attempt.merged.reach is None


def test_rows_of_epochs_keep_their_axis_beside_steps(attempt: Attempt) -> None:
    for epoch in range(3):
        attempt.add(OBSERVED, *losses(*range(10 * epoch + 1, 10 * epoch + 11)))
        attempt.add(STRUCTURED, {"epoch": epoch, "loss": 1.0, "val_loss": 2.0 - epoch}, at=10 * epoch + 11.5)
        attempt.record(is_over=False)
    record = attempt.record()
    assert [row for row in record if "step" in row] == losses(*range(1, 31))
    assert [row for row in record if "step" not in row] == [
        {"epoch": epoch, "val_loss": 2.0 - epoch} for epoch in range(3)
    ]
    assert [place for place, row in enumerate(record) if "epoch" in row] == [10, 21, 32]
    assert attempt.merged.sources == {"steps": "observed", "loss": "observed", "val_loss": "structured"}


@pytest.mark.parametrize(
    ("printed", "steps"), [((), [21, 22, 23]), ((21, 22, 23), [21, 22, 23]), ((1, 2, 3), [1, 2, 3])]
)
def test_observed_steps_continue_those_of_the_checkpoint(
    tmp_path: Path, printed: tuple[int, ...], steps: list[int]
) -> None:
    """A process counts from its own start; the printed steps show whether it resumed."""
    Attempt.leave(tmp_path, OBSERVED, *losses(*range(1, 21)))
    attempt = Attempt(tmp_path, resumed_at=20)
    for number in range(1, 4):
        attempt.add(OBSERVED, *losses(number, of=5.0))
        if printed:
            attempt.add(PRINTED, {"step": printed[number - 1], "loss": 3.0}, at=1.0 + number)
    record = attempt.record()
    assert [row["step"] for row in record] == ([*range(1, 21)] if steps[0] == 21 else []) + steps
    assert attempt.again == ([] if steps[0] == 21 else [1])


def test_losses_equal_to_those_of_the_first_steps_show_that_it_did_not_resume(tmp_path: Path) -> None:
    for name, of, is_anew in (("equal", 1.0, True), ("other", 2.0, False), ("all the same", 0.0, False)):
        Attempt.leave(tmp_path / name, OBSERVED, *losses(*range(1, 21), of=1.0 if of else 0.0))
        attempt = Attempt(tmp_path / name, resumed_at=20)
        for number in range(1, 31):
            attempt.add(OBSERVED, *losses(number, of=of))
            attempt.record(is_over=False)
        found = (attempt.record()[-1]["step"], attempt.merged.first)
        assert found == ((30, 1) if is_anew else (50, 21)), name


def test_printed_rows_of_an_earlier_step_are_a_fault_only_if_nothing_better_counts(tmp_path: Path) -> None:
    for source, again in ((None, [1]), (DECLARED, [])):
        folder = tmp_path / str(source)
        Attempt(folder).writer.write(is_over=True)
        Attempt.leave(folder, DECLARED, *losses(10, 20))
        attempt = Attempt(folder, resumed_at=20)
        attempt.add(PRINTED, *losses(1, 2, of=9.0))
        attempt.record(is_over=False)
        assert attempt.again == []
        if source:
            attempt.add(source, *losses(30, 40))
        attempt.record()
        assert attempt.again == again


def test_an_attempt_without_rows_leaves_the_file_that_another_node_writes(tmp_path: Path) -> None:
    first, other = Attempt(tmp_path), Attempt(tmp_path)
    other.record(is_over=False)
    first.add(PRINTED, *losses(1, 2, 3))
    assert first.record() == losses(1, 2, 3)
    other.merged.forget(OBSERVED)
    assert other.record() == losses(1, 2, 3)


def test_a_number_that_is_not_finite_is_a_fault_whatever_has_the_figure(tmp_path: Path) -> None:
    nan, fine = "nan", losses(1, 2, 3)
    skipped: list[Row] = [{"step": step, "loss": nan} for step in range(3, 20)]
    cases = {
        "observed": [(OBSERVED, [*fine, {"step": 4, "loss": nan}])],
        "beside a declared one": [
            (DECLARED, losses(1, 2, 3, 4)),
            (OBSERVED, [*fine, {"step": 4, "loss": nan}]),
        ],
        "of another unit": [(STRUCTURED, losses(1000, 2000)), (OBSERVED, [*fine, {"step": 4, "loss": nan}])],
        "in a file of epochs": [(OBSERVED, fine), (STRUCTURED, [{"epoch": 1, "val_loss": nan}])],
        "printed for batches that the program leaves out": [
            (OBSERVED, fine),
            (PRINTED, [{"step": 0, "loss": 0.50001}, *losses(1, of=0.6667), *losses(2, of=0.75), *skipped]),
        ],
        "printed in the unit of the steps": [
            (OBSERVED, fine),
            (PRINTED, [*fine[:2], {"step": 3, "grad_norm": "nan"}]),
        ],
    }
    for name, sources in cases.items():
        attempt = Attempt(tmp_path / name)
        for source, rows in sources:
            attempt.add(source, *rows)
        record = attempt.record()
        assert attempt.writer.fault, name
        assert any(row_fault(row) for row in record), name
    attempt = Attempt(tmp_path)
    attempt.add(OBSERVED, *fine)
    attempt.add(PRINTED, {"step": 500, "loss": "inf"}, at=1.0)  # the best loss of an earlier run
    attempt.record()
    assert attempt.writer.fault is None


def test_a_fault_names_its_step_once_that_is_known(attempt: Attempt) -> None:
    """Two lines of one step may be read apart; the one with the epoch came first."""
    attempt.add(PRINTED, *losses(1, 2), {"epoch": 0.75, "loss": "nan"}, {"epoch": 1.0, "loss": "nan"})
    attempt.record(is_over=False)
    assert attempt.writer.fault == "epoch 0.75: the loss is nan, which is not finite"
    attempt.add(PRINTED, {"step": 3, "loss": "nan"})
    attempt.record()
    assert attempt.writer.fault == "step 3: the loss is nan, which is not finite"


def test_a_loss_of_zero_is_no_fault_but_the_gradients_of_a_hidden_nan_are() -> None:
    assert row_fault({"step": 1, "loss": 0.0}) is None
    assert row_fault({"epoch": 0.5, "loss": 0.0, "grad_norm": "nan"})


# One source.


def test_the_newest_row_waits_to_be_completed(attempt: Attempt) -> None:
    attempt.add(PRINTED, *losses(1, 2))
    assert attempt.record(is_over=False) == losses(1)
    attempt.add(PRINTED, {"step": 2, "val_loss": 2.75})
    assert attempt.record(is_over=False) == [*losses(1), {**losses(2)[0], "val_loss": 2.75}]
    attempt.add(PRINTED, {"step": 1, "val_loss": 2.5})
    assert attempt.record(is_over=False)[0] == {**losses(1)[0], "val_loss": 2.5}


def test_steps_that_are_trained_again_replace_those_of_before(attempt: Attempt) -> None:
    attempt.add(PRINTED, *losses(1, 2, 3, 4, 5))
    attempt.record(is_over=False)
    attempt.add(PRINTED, *losses(3, 4, of=2.0))
    assert attempt.record() == [*losses(1, 2), *losses(3, 4, of=2.0)]


FAULTS: list[Row] = [{"loss": "nan"}, {"loss": 1.0, "grad_norm": "inf"}]


def test_a_fault_of_a_step_is_never_dropped(tmp_path: Path) -> None:
    """Another rank, or a restart within the attempt, prints the step again, before the fault or after it."""
    fine, wrong = losses(10, 20, 25, grad_norm=1.0), []
    for place, fault in ((place, fault) for place in range(3) for fault in FAULTS):
        odd = {"step": fine[place]["step"], **fault}
        again = losses(10, 20, 25, of=2.0)
        orders = ([*fine[:place], odd, *fine[place:]], [*fine, odd], [*fine, odd, *again])
        for number, given in enumerate(orders):
            attempt = Attempt(tmp_path / f"{place}-{FAULTS.index(fault)}-{number}")
            attempt.add(PRINTED, *given)
            found = {row["step"]: row for row in attempt.record()}
            if list(found) != [10, 20, 25] or any(found[odd["step"]][name] != odd[name] for name in odd):
                wrong.append((place, fault, number, found))
    assert not wrong


@pytest.mark.parametrize("resumed_at", [0, 20])
def test_a_row_before_the_checkpoint_shows_that_it_did_not_resume(tmp_path: Path, resumed_at: int) -> None:
    Attempt.leave(tmp_path, DECLARED, *losses(10, 20))
    attempt = Attempt(tmp_path, resumed_at=resumed_at)
    attempt.add(DECLARED, *losses(0, 1, of=2.0))
    assert attempt.record() == losses(0, 1, of=2.0)
    assert attempt.again == ([0] if resumed_at else [])


def test_the_step_at_a_time_is_the_last_on_record(attempt: Attempt) -> None:
    assert attempt.merged.step_before(5.0) == 0
    attempt.add(OBSERVED, *losses(10, 20, 30))
    attempt.record()
    assert [attempt.merged.step_before(moment) for moment in (5.0, 21.0, 30.9, 99.0)] == [0, 20, 20, 30]


def test_a_file_whose_rows_come_together_leaves_no_doubt_about_the_optimizer_steps(tmp_path: Path) -> None:
    """Steps 1 to 8 after a checkpoint of step 4 fit a file that is at 8 and at 12: they end where it ends."""
    attempt = Attempt(tmp_path, resumed_at=4)
    attempt.add(STRUCTURED, *losses(6, 8), at=10.0)
    attempt.add(OBSERVED, *losses(*range(1, 9)), at=10.1)
    attempt.add(STRUCTURED, *losses(10, 12), at=10.2)
    attempt.record()
    assert attempt.merged.optimizer_shift == 4
