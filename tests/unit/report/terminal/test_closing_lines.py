"""A phase with an injected clock, at every width, and the last lines that a person reads."""

import itertools
import json
import logging
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trainyard.proof import PARTS
from trainyard.report.facts.proof_record import ProofRecord
from trainyard.report.facts.run_facts import read_facts
from trainyard.report.terminal.closing_lines import closing_lines, is_copied, proof_lines, sample_lines
from trainyard.report.terminal.phase import PhaseDisplay, bar

NewRun = Callable[[], Any]


def test_a_sample_is_a_block_on_a_terminal_and_a_line_in_a_log(new_run: NewRun) -> None:
    facts = read_facts(new_run().train(10).succeed().path)
    assert list(sample_lines(facts, one_line=False)) == [
        ("sample", "def _parse_args(self, args):"),
        ("", "    if not isinstance(name, str):"),
        ("", '        raise TypeError("`x`")'),
    ]
    assert list(sample_lines(facts, one_line=True)) == [
        ("sample", 'def _parse_args(self, args):⏎if not isinstance(name, str):⏎raise TypeError("`x`")')
    ]


def test_the_models_text_cannot_send_control_sequences_to_the_terminal(new_run: NewRun) -> None:
    run = new_run().train(10).end("succeeded", 0, "", sample="\x1b[2Ja\rb\x07\n\n" + "long " * 100)
    lines = list(sample_lines(read_facts(run.path), one_line=False))
    assert lines[0] == ("sample", "·[2Ja")
    assert all(text.isprintable() and len(text) <= 100 for _, text in lines)


def proof_of(run: Any) -> ProofRecord:
    proof = read_facts(run.path).proof
    assert proof is not None
    return proof


def test_a_proof_is_a_block_of_five_lines(new_run: NewRun) -> None:
    parts = proof_of(new_run().train().succeed().prove()).parts
    phases = [(phase, status) for phase, _, status in proof_lines(parts, one_line=False)]
    assert phases == [("proven", ""), *((f"  {name}", "") for name in PARTS)]
    too_short = [replace(part, is_judged=part.name != "learned") for part in parts]
    for judged, learned in ((parts, ("proven learned", "ok")), (too_short, ("learned", ""))):
        logged = [(phase, status) for phase, _, status in proof_lines(judged, one_line=True)]
        others = ((f"proven {name}", "ok") for name in PARTS[2:])
        assert logged == [("proven trained", "ok"), learned, *others]


def test_failing_parts_come_first_with_their_next_steps_once(new_run: NewRun) -> None:
    """The first next step is left to the last lines if they follow."""
    parts = proof_of(new_run().train().succeed().prove(failing="stored")).parts
    lines = list(proof_lines(parts, one_line=False))
    assert (lines[0][0], lines[0][1][:24], lines[0][2]) == (
        "not proven",
        "stored: 5 of 6 objects v",
        "failed",
    )
    rest = ["  trained", "  learned", "  network", "  repeatable"]
    assert [phase for phase, _, _ in lines[1:]] == ["next", *rest]
    closing = proof_lines(parts, one_line=False, closing_follows=True)
    assert [phase for phase, _, _ in closing] == ["not proven", *rest]
    both = [replace(part, passed=False, next_step="make resume") for part in parts[:2]]
    phases = [phase for phase, _, _ in proof_lines(both, one_line=True)]
    assert phases == ["not proven", "next", "not proven"]


def last_lines(run: Any) -> dict[str, str]:
    return {phase: text for phase, text, _ in closing_lines(read_facts(run.path))}


def shell_words(command: str) -> list[str]:
    """The words of a shell's command, the program by its name alone."""
    program, *words = shlex.split(command)
    return [Path(program).name, *words]


def test_a_proven_run_gets_commands_to_view_it_beside_others_and_to_repeat_it(new_run: NewRun) -> None:
    run = new_run().train().succeed().prove()
    (run.layout.tensorboard / "events.out.tfevents.1").touch()
    lines = last_lines(run)
    assert lines["report"] == f"{run.path}/report/index.html"
    assert shell_words(lines["open"]) == ["tensorboard", "--logdir", "runs"]
    assert lines["repeat"] == f"trainyard train --config {run.path}/config.yaml  (same digest: 0123…)"
    assert set(lines) == {"report", "open", "repeat"}


def test_a_proven_run_of_the_pipeline_is_repeated_by_it(new_run: NewRun) -> None:
    run = new_run().train().succeed()
    record = json.loads(run.layout.run_file.read_text())
    command = ["trainyard", "run", "--store", "s3://a/b c"]
    run.layout.run_file.write_text(json.dumps({**record, "command_line": command}))
    run.prove()
    again = last_lines(run)["repeat"]
    words = f"--config {run.path}/config.yaml --store 's3://a/b c'"
    assert again == f"trainyard run {words}  (same digest: 0123…)"


def test_only_commands_and_paths_are_kept_in_one_piece(new_run: NewRun) -> None:
    run = new_run().train(110).end("stopped", 75, "SIGTERM")
    for proven in (False, True):
        if proven:
            run.succeed().prove()
        for phase, text, status in closing_lines(read_facts(run.path)):
            assert is_copied(phase, text) is (phase not in ("not proven", "checkpoint")), phase
            assert not (status and is_copied(phase, text))
    assert not is_copied("next", "Free space on the disk, then run make again.")


def test_a_run_whose_folder_has_another_name_is_viewed_alone(new_run: NewRun, tmp_path: Path) -> None:
    run = new_run().train().succeed().prove()
    (run.layout.tensorboard / "events.out.tfevents.1").touch()
    run.path.rename(tmp_path / "mine")
    lines = {phase: text for phase, text, _ in closing_lines(read_facts(Path("mine")))}
    assert shell_words(lines["open"]) == ["tensorboard", "--logdir", "mine/tensorboard"]


def test_offline_records_of_wandb_can_be_uploaded(new_run: NewRun) -> None:
    run = new_run().train().succeed()
    folder = run.layout.logs / "wandb"
    (folder / "offline-run-1-x").mkdir(parents=True)
    assert shell_words(last_lines(run)["sync"]) == ["wandb", "sync", f"{folder}/offline-run-1-x"]
    (folder / "offline-run-2-x").mkdir()
    assert last_lines(run)["sync"].endswith(
        f"sync --append {folder}/offline-run-1-x {folder}/offline-run-2-x"
    )


def test_an_unproven_run_gets_its_end_its_last_checkpoint_and_the_next_command(new_run: NewRun) -> None:
    run = new_run().train(110).end("stopped", 75, "Stopped at step 110 of 600: the deadline is near.")
    lines = list(closing_lines(read_facts(run.path)))
    assert [phase for phase, _, _ in lines] == ["not proven", "checkpoint", "report", "next"]
    assert lines[0][1:] == ("stopped at step 110 of 600: the deadline is near.", "degraded")
    assert lines[1][1] == "step 100 is complete, 43.1 kB"
    assert lines[-1][1].endswith("--resume auto")


def test_a_failure_ends_with_three_lines_what_where_and_what_to_do(new_run: NewRun) -> None:
    run = new_run().train(110).end("failed", 1, "Step 111: loss nan is not finite.")
    for judged in (False, True):
        if judged:
            run.prove(failing="trained")
        lines = list(closing_lines(read_facts(run.path)))
        assert [phase for phase, _, _ in lines] == ["report", "failed", "error", "next"]
        assert lines[1][1] == "in step 111 of 600, exit code 1 · checkpoint: step 100 is complete, 43.1 kB"
        assert lines[2][1] == "loss nan is not finite."


WIDTHS = (19, 39, 79, 119)
GB = 1_000_000_000


class Clock:
    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


def live_lines(total: int | None, each: int, *, seconds: int, width: int, unit: str = "B") -> list[str]:
    """The line at each second of a phase in which `each` is done per second."""
    clock = Clock()
    display = PhaseDisplay("stored", clock=clock)
    display.begin("reading back the store", total, unit)
    lines = []
    for _ in range(seconds):
        lines.append(display.line(width))
        clock.now += 1.0
        display.advance(each)
    return lines


def test_a_line_has_the_amount_the_speed_and_the_time_left() -> None:
    last = live_lines(4_800_000_000, 300_000_000, seconds=5, width=119)[-1][1:]
    assert last == (
        " stored        reading back the store  1.2 of 4.8 GB  300.0 MB/s  0:12 left  ▕████            ▏"
    )


def test_units_other_than_bytes_are_counted_by_name() -> None:
    assert (
        "312 of 1,614 files  156 files/s  8.3 s left"
        in live_lines(1614, 156, seconds=3, width=119, unit="files")[-1]
    )


def test_a_line_fits_every_width_and_always_changes() -> None:
    for width, total, each in itertools.product(WIDTHS, (None, 0, 7, 4 * GB), (0, 1, GB // 3)):
        lines = live_lines(total, each, seconds=12, width=width)
        assert all(0 < len(line) <= width for line in lines)
        assert all(line[1:].startswith(" stored"[: width - 1]) for line in lines)
        still = [line[1:] for line in lines[3:]] if not each and width >= 39 else []
        assert len(set(still)) == len(still), "without progress the elapsed time still changes"


def test_the_least_important_parts_are_left_out_first() -> None:
    for width, there, gone in (
        (79, ["1.2 of 4.8 GB", "MB/s", "left"], "▕"),
        (70, ["1.2 of 4.8 GB", "left"], "MB/s"),
        (39, ["…", "1.2 of 4.8 GB"], "left"),
    ):
        line = live_lines(4_800_000_000, 300_000_000, seconds=5, width=width)[-1]
        assert all(part in line for part in there) and gone not in line, line


def test_bytes_that_were_read_twice_never_exceed_the_total() -> None:
    line = live_lines(10, 7, seconds=4, width=119)[-1]
    assert "10 of 10 B" in line
    assert "0.0 s left" in line


def test_the_line_says_waiting_when_no_bytes_arrive() -> None:
    clock = Clock()
    display = PhaseDisplay("stored", clock=clock)
    display.begin("fetching", 100)
    display.advance(50)
    clock.now += 7.0
    assert "50 of 100 B  waiting 7.0 s" in display.line(79)
    display.advance(1)
    assert "waiting" not in display.line(79)
    display.advance(49)
    clock.now += 3.0
    assert "100 of 100 B  ending 3.0 s" in display.line(79)


def log_lines(caplog: pytest.LogCaptureFixture, seconds: int, *, each: int = 0) -> list[tuple[float, str]]:
    """The times and texts of the log lines of a phase of that length, with two calls per second."""
    caplog.set_level(logging.INFO, logger="trainyard")
    caplog.clear()
    clock, found = Clock(), []
    display = PhaseDisplay("stored", clock=clock)
    display.begin("reading back the store", 4_800_000_000)
    for _ in range(2 * seconds):
        display.log_progress()
        found += [(clock.now - 50.0, record.getMessage()) for record in caplog.records]
        caplog.clear()
        clock.now += 0.5
        display.advance(each)
    return found


def test_work_of_two_seconds_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert log_lines(caplog, 2) == []


def test_long_work_is_logged_each_ten_seconds_and_later_each_minute(caplog: pytest.LogCaptureFixture) -> None:
    moments = [moment for moment, _ in log_lines(caplog, 3600)]
    gaps = [after - before for before, after in itertools.pairwise(moments)]
    assert moments[0] == 2.0
    assert all(10.0 <= gap <= 60.5 for gap in gaps)
    assert gaps[:5] == [10.0] * 5
    assert gaps[-1] >= 60.0


def test_a_log_line_has_the_figures_but_no_bar_or_spinner(caplog: pytest.LogCaptureFixture) -> None:
    lines = [text for _, text in log_lines(caplog, 13, each=150_000_000)]
    assert lines[1] == "stored: reading back the store, 3.6 of 4.8 GB, 300.0 MB/s, 4.0 s left"
    assert not any(set("\r\x1b▕█") & set(line) for line in lines)


def test_the_next_work_starts_from_zero(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="trainyard")
    clock = Clock()
    display = PhaseDisplay("stored", clock=clock)
    for what in ("listing", "reading", "hashing"):
        display.begin(what)
        clock.now += 1.9
        display.log_progress()
    assert not caplog.records
    assert display.line(79).endswith("hashing")


def test_the_bar_always_has_the_same_width() -> None:
    assert {len(bar(share)) for share in (0.0, 0.01, 0.5, 0.999, 1.0, 2.0)} == {18}
