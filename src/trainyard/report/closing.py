"""The last lines of a pipeline on a terminal or in a log: the sample, the proof, where to look, how to go on.

Each is a phase and a text for `command.announce`; nothing is written here.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

from trainyard.report.commands import tensorboard_command
from trainyard.report.facts import RunFacts
from trainyard.report.headline import Verdict, headline
from trainyard.run.commands import again_command

_SAMPLE_LINES = 3
_LINE_CHARACTERS = 100


def sample_lines(facts: RunFacts, *, one_line: bool, width: int | None = None) -> Iterator[tuple[str, str]]:
    """The beginning of what the model writes, in lines of at most `width`; a log gets it in `one_line`.

    A model can write anything, also control sequences: what cannot be printed becomes a dot.
    """
    if facts.sample is None:
        return
    lines = [_printable(line) for line in facts.sample.splitlines() if line.strip()]
    if one_line:
        lines = ["⏎".join(line.strip() for line in lines)]
    for index, line in enumerate(lines[:_SAMPLE_LINES]):
        yield ("" if index else "sample"), line[: width or _LINE_CHARACTERS]


class PartLike(Protocol):
    """One part of a proof."""

    @property
    def name(self) -> str: ...
    @property
    def holds(self) -> bool: ...
    @property
    def evidence(self) -> str: ...
    @property
    def next_step(self) -> str | None: ...


def proof_lines(parts: Sequence[PartLike], *, one_line: bool) -> Iterator[tuple[str, str, str]]:
    """Phase, text and status of the proof: what fails first and with its next step, then the rest.

    A log gets each part in `one_line` that stands for itself; a terminal gets a block under a heading.
    """
    failing = [part for part in parts if not part.holds]
    for part in failing:
        yield "not proven", f"{part.name}: {part.evidence}", "failed"
        if part.next_step:
            yield "next", part.next_step, ""
    if not failing and not one_line:
        yield "proven", "", ""
    for part in parts:
        if part.holds:
            yield (
                (f"proven {part.name}" if one_line else f"  {part.name}"),
                part.evidence,
                "ok" if one_line else "",
            )


def where_to_look(facts: RunFacts) -> Iterator[tuple[str, str]]:
    """The report, the curves, and the command that repeats a proven run or mends another."""
    head = headline(facts)
    yield "report", str(facts.directory / "report" / "index.html")
    if any((facts.directory / "tensorboard").glob("**/events.out.tfevents.*")):
        yield "look", tensorboard_command(facts.directory)
    if head.verdict is Verdict.PROVEN:
        digest = facts.weights_sha256
        yield "again", again_command(facts.directory) + (f"  (same digest: {digest[:4]}…)" if digest else "")
    elif head.next_step:
        yield "next", head.next_step


def _printable(line: str) -> str:
    return "".join(character if character.isprintable() else "·" for character in line.expandtabs(4))
