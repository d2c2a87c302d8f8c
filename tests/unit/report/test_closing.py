"""The last lines: what a person reads when the pipeline is done."""

from collections.abc import Callable
from typing import Any

from trainyard.report.closing import proof_lines, sample_lines, where_to_look
from trainyard.report.facts import read_facts

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


def test_what_a_model_writes_cannot_steer_the_terminal(new_run: NewRun) -> None:
    run = new_run().train(10).end("succeeded", 0, "", sample="\x1b[2Ja\rb\x07\n\n" + "long " * 100)
    lines = list(sample_lines(read_facts(run.path), one_line=False))
    assert lines[0] == ("sample", "·[2Ja")
    assert all(text.isprintable() and len(text) <= 100 for _, text in lines)


def test_without_a_sample_there_is_no_line(new_run: NewRun) -> None:
    assert list(sample_lines(read_facts(new_run().path), one_line=False)) == []


def test_a_proof_is_a_block_of_four_lines(new_run: NewRun) -> None:
    proof = read_facts(new_run().train().succeed().prove().path).proof
    assert proof is not None
    phases = [(phase, status) for phase, _, status in proof_lines(proof.parts, one_line=False)]
    names = ("trained", "network", "stored", "repeatable")
    assert phases == [("proven", ""), *((f"  {name}", "") for name in names)]
    logged = list(proof_lines(proof.parts, one_line=True))
    assert [(phase, status) for phase, _, status in logged] == [(f"proven {name}", "ok") for name in names]


def test_what_fails_comes_first_with_its_next_step(new_run: NewRun) -> None:
    proof = read_facts(new_run().train().succeed().prove(failing="stored").path).proof
    assert proof is not None
    lines = list(proof_lines(proof.parts, one_line=False))
    assert lines[0][0] == "not proven"
    assert lines[0][1].startswith("stored: 5 of 6 objects")
    assert lines[0][2] == "failed"
    assert lines[1][0] == "next"
    assert [phase for phase, _, _ in lines[2:]] == ["  trained", "  network", "  repeatable"]


def test_a_proven_run_can_be_looked_at_and_repeated(new_run: NewRun) -> None:
    run = new_run().train().succeed().prove()
    (run.layout.tensorboard / "events.out.tfevents.1").touch()
    lines = dict(where_to_look(read_facts(run.path)))
    assert lines["report"] == f"{run.path}/report/index.html"
    assert lines["look"].endswith(f"tensorboard --logdir {run.path}/tensorboard")
    assert lines["again"] == f"scripts/train.py --config {run.path}/config.yaml  (same digest: 0123…)"
    assert "next" not in lines


def test_another_run_gets_the_command_that_goes_on(new_run: NewRun) -> None:
    run = new_run().train(10).end("stopped", 75, "deadline")
    lines = dict(where_to_look(read_facts(run.path)))
    assert set(lines) == {"report", "next"}
    assert lines["next"].endswith("--resume auto")
