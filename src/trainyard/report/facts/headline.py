"""The first line of every report: the verdict on a run, and its main figures."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from trainyard.report.facts.next_commands import prove_command
from trainyard.report.facts.quantities import counted, duration, loss, money, percent
from trainyard.report.facts.run_facts import RunFacts
from trainyard.report.facts.status import Status
from trainyard.run.failure import next_command, where_it_ended, with_advice


class RunVerdict(StrEnum):
    """The verdict, shown as a colour; the text beside it always says the same."""

    PROVEN = "proven"
    DEGRADED = "degraded"
    FAILED = "failed"
    GOING = "going"

    @property
    def symbol(self) -> str:
        """The emoji for Markdown and Slack; terminals get words."""
        return {"proven": "✅", "degraded": "⚠", "failed": "❌", "going": ""}[self]


@dataclass(frozen=True)
class Headline:
    """A verdict in words."""

    verdict: RunVerdict
    text: str
    """Without the run's name, for example `Not proven: stored`."""
    reason: str = ""
    """Why the verdict is not better; may be several sentences."""
    next_step: str = ""
    """The command to run or the thing to do next."""


def headline(facts: RunFacts) -> Headline:
    """The verdict of the proof if there is one, else of the run's recorded state."""
    proof = facts.proof
    if proof is not None and proof.proven:
        return Headline(RunVerdict.PROVEN, "Trained and proven")
    if proof is not None:
        first = proof.failing[0] if proof.failing else None
        names = ", ".join(part.name for part in proof.failing) or "the record of the proof is incomplete"
        evidence, step = (first.evidence, first.next_step) if first else ("", None)
        evidence = with_advice(evidence, facts.outcome) if first and first.name == "trained" else evidence
        return Headline(
            RunVerdict.FAILED, f"Not proven: {names}", evidence, step or prove_command(facts.directory)
        )
    return _of_state(facts)


def _of_state(facts: RunFacts) -> Headline:
    at, detail = position(facts), facts.state.detail
    again = next_command(facts.run, facts.directory)
    match facts.state.status:
        case Status.SUCCEEDED:
            return Headline(
                RunVerdict.DEGRADED,
                "Trained, not proven yet",
                "The run has changed since it was proven: prove it again."
                if facts.proof_is_outdated
                else "There is no proof of this run in its present state.",
                prove_command(facts.directory),
            )
        case Status.STOPPED:
            return Headline(RunVerdict.DEGRADED, f"Stopped{at}", detail, again)
        case Status.FAILED:
            where = where_it_ended(facts.outcome, facts.steps)
            return Headline(
                RunVerdict.FAILED, f"Failed {where}".strip(), with_advice(detail, facts.outcome), again
            )
        case Status.INTERRUPTED:
            return Headline(RunVerdict.FAILED, f"Interrupted{at}", f"It has {detail}.", again)
        case Status.RUNNING:
            return Headline(RunVerdict.GOING, f"Training{at}", detail)
        case Status.EMPTY:
            return Headline(RunVerdict.DEGRADED, "Nothing on record yet")


def position(facts: RunFacts) -> str:
    """` at step 340 of 600`; empty when the step is not known."""
    if facts.step is None:
        return ""
    return f" at step {facts.step:,}" + (f" of {facts.steps:,}" if facts.steps else "")


def figures(
    facts: RunFacts, *, strong: Callable[[str], str] = str, escaped: Callable[[str], str] = str
) -> list[str]:
    """`loss 5.56 → 1.08, 1.71 bits/byte`, `600 steps in 1:52`, `58 % MFU on NVIDIA H100`, where known.

    A run that trains on rewards has `reward 0.53 → 0.91` instead of losses. `strong` marks up losses, rewards
    and costs; `escaped` is applied to text that comes from the run.
    """
    cost = "" if facts.usd is None else strong(money(facts.usd))
    parts = (_losses(facts, strong), _length(facts), _speed(facts, escaped), cost)
    return [text for text in parts if text]


def _losses(facts: RunFacts, strong: Callable[[str], str]) -> str:
    if facts.reward is not None:
        was = f"{facts.first_reward:.2f} → " if facts.first_reward is not None else ""
        return f"reward {strong(f'{was}{facts.reward:.2f}')}"
    if facts.loss is None:
        return ""
    first = f"{loss(facts.first_loss)} → " if facts.first_loss is not None else ""
    bits = f", {facts.bits_per_byte:.2f} bits/byte" if facts.bits_per_byte is not None else ""
    return f"loss {strong(first + loss(facts.loss))}{bits}"


def _length(facts: RunFacts) -> str:
    if facts.step is None:
        return ""
    time = f" in {duration(facts.training_seconds)}" if facts.training_seconds is not None else ""
    return f"{counted(facts.step, 'step')}{time}"


def _speed(facts: RunFacts, escaped: Callable[[str], str]) -> str:
    hardware = facts.section("hardware")
    device = hardware.get("device_name") or hardware.get("device")
    place = f"on {escaped(str(device))}" if device else ""
    mfu = facts.mfu
    return " ".join(text for text in ("" if mfu is None else f"{percent(mfu)} MFU", place) if text)
