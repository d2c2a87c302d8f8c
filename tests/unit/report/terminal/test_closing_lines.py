"""The last lines that a person reads when the pipeline is done."""

import json
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainyard.proof import PARTS
from trainyard.report.facts.proof_record import ProofRecord
from trainyard.report.facts.run_facts import read_facts
from trainyard.report.terminal.closing_lines import closing_lines, is_copied, proof_lines, sample_lines

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


def test_an_unproven_run_gets_its_end_its_last_checkpoint_and_the_next_command(
    new_run: NewRun,
) -> None:
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
