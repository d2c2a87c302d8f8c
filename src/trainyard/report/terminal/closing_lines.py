"""The last lines of a pipeline on a terminal or in a log: sample, proof, places of the results, next command.

Each line is a phase and a text for `command.output.announce`; this module writes nothing.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from trainyard.report.facts.next_commands import tensorboard_command, wandb_command
from trainyard.report.facts.run_facts import RunFacts
from trainyard.report.facts.verdict_line import RunVerdict, root_error, run_headline
from trainyard.run.failure import command_line_of, short_reason, where_it_ended
from trainyard.run.sizes import format_size
from trainyard.run.suggested_commands import again_command, is_command

if TYPE_CHECKING:
    from trainyard.proof.proof import Part
    from trainyard.report.facts.proof_record import PartRecord

_SAMPLE_LINES = 3
_LINE_CHARACTERS = 100
_COPIED = frozenset({"report", "open", "sync", "repeat"})


def sample_lines(facts: RunFacts, *, one_line: bool, width: int | None = None) -> Iterator[tuple[str, str]]:
    """The beginning of the text that the model wrote, in lines of at most `width`; a log gets `one_line`.

    A model can write anything, even control sequences: a dot replaces each character that cannot be printed.
    """
    if facts.sample is None:
        return
    texts = [line.expandtabs(4) for line in facts.sample.splitlines() if line.strip()]
    lines = ["".join(each if each.isprintable() else "·" for each in text) for text in texts]
    if one_line:
        lines = ["⏎".join(line.strip() for line in lines)]
    for index, line in enumerate(lines[:_SAMPLE_LINES]):
        yield ("" if index else "sample"), line[: width or _LINE_CHARACTERS]


def proof_lines(
    parts: "Sequence[Part | PartRecord]",
    *,
    one_line: bool,
    closing_follows: bool = False,
) -> Iterator[tuple[str, str, str]]:
    """Phase, text and status of the proof's lines: the failing parts with their next steps, then the rest.

    In a log each part is `one_line` that makes sense alone; on a terminal the parts are a block under a
    heading. With `closing_follows`, the first failing part's next step is left out, because `closing_lines`
    ends with it.
    """
    failing = [part for part in parts if not part.passed]
    shown = {part.next_step for part in failing[:1] if closing_follows}
    for part in failing:
        yield "not proven", f"{part.name}: {part.evidence}", "failed"
        if part.next_step and part.next_step not in shown:
            shown.add(part.next_step)
            yield "next", part.next_step, ""
    if parts and not failing and not one_line:
        yield "proven", "", ""
    for part in parts:
        if part.passed and one_line and part.is_judged:
            yield f"proven {part.name}", part.evidence, "ok"
        elif part.passed:  # a part that was not judged is not called proven
            yield part.name if one_line else f"  {part.name}", part.evidence, ""


def closing_lines(facts: RunFacts) -> Iterator[tuple[str, str, str]]:
    """Phase, text and status of the last lines, after a failure as well as after a success.

    They show where the report and the curves are, and the command that repeats a proven run. Of a run that
    failed the last three are how it ended, its root error and the next step; of any other that is not done
    they show how it ended, if no proof shows it, the last good checkpoint and the next step.
    """
    head, status = run_headline(facts), facts.outcome.get("status")
    last = facts.checkpoints[-1] if facts.checkpoints else None
    saved = f"step {last.step:,} is complete, {format_size(last.size)}" if last else "none was saved"
    if status not in ("succeeded", "failed"):
        if facts.proof is None and head.verdict is not RunVerdict.GOING:
            reason = f": {head.reason}" if head.reason else ""
            yield "not proven", f"{head.text[:1].lower()}{head.text[1:]}{reason}", str(head.verdict)
        yield "checkpoint", saved, ""
    yield "report", str(facts.directory / "report" / "index.html"), ""
    if any((facts.directory / "tensorboard").glob("**/events.out.tfevents.*")):
        yield "open", tensorboard_command(facts.directory, run_id=facts.name), ""
    if offline := sorted((facts.directory / "logs" / "wandb").glob("offline-run-*")):
        yield "sync", wandb_command(offline), ""
    if head.verdict is RunVerdict.PROVEN:
        digest = facts.weights_sha256
        same = f"  (same digest: {digest[:4]}…)" if digest else ""
        yield "repeat", again_command(facts.directory, command_line=command_line_of(facts.run)) + same, ""
        return
    if status == "failed":
        where = where_it_ended(facts.outcome, facts.steps) or "before the first step"
        code = facts.outcome.get("program_exit_code") or facts.outcome.get("exit_code")
        yield "failed", f"{where}, exit code {code} · checkpoint: {saved}", ""
        if error := root_error(facts) or short_reason(facts.outcome):
            yield "error", error, ""
    if head.next_step:
        yield "next", head.next_step, ""


def is_copied(phase: str, text: str) -> bool:
    """Return whether people copy the text of this line, so that it must not be broken: a command or a path.

    The next step after a failure (`next`) may be a sentence, which is wrapped like any other text.
    """
    return phase in _COPIED or (phase == "next" and is_command(text))
