"""The first line of every report: the verdict on a run."""

from dataclasses import dataclass
from enum import StrEnum

from trainyard.errors import ExitCode
from trainyard.report.facts.next_commands import prove_command
from trainyard.report.facts.run_facts import RunFacts
from trainyard.report.facts.status import Status
from trainyard.run.failure import next_step, read_failure, where_it_ended, with_advice


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


def run_headline(facts: RunFacts) -> Headline:
    """The verdict of the proof if there is one, else of the run's recorded state."""
    proof = facts.proof
    if proof is not None and proof.proven:
        return Headline(RunVerdict.PROVEN, "Trained and proven")
    if proof is not None:
        first = proof.failing[0] if proof.failing else None
        names = ", ".join(part.name for part in proof.failing) or "the record of the proof is incomplete"
        reason, step = "", first.next_step if first else None
        if first and first.name == "trained":  # the proof's own line of a part is not repeated
            advised = with_advice(first.evidence, facts.outcome)
            reason = root_error(facts) or (advised if advised != first.evidence else "")
        return Headline(
            RunVerdict.FAILED, f"Not proven: {names}", reason, step or prove_command(facts.directory)
        )
    return _of_state(facts)


def _of_state(facts: RunFacts) -> Headline:
    at, detail = position(facts), facts.state.detail
    again = next_step(facts.run, facts.directory)
    match facts.state.status:
        case Status.SUCCEEDED:
            reason = "There is no proof of this run in its present state."
            if facts.proof_is_outdated:
                reason = "The run has changed since it was proven: prove it again."
            prove = prove_command(facts.directory)
            return Headline(RunVerdict.DEGRADED, "Trained, not proven yet", reason, prove)
        case Status.STOPPED:
            return Headline(RunVerdict.DEGRADED, f"{_end_word(facts, 'Stopped')}{at}", detail, again)
        case Status.FAILED:
            where = where_it_ended(facts.outcome, facts.steps)
            return Headline(
                RunVerdict.FAILED,
                f"{_end_word(facts, 'Failed')} {where}".strip(),
                ". ".join(filter(None, (with_advice(detail, facts.outcome), root_error(facts)))),
                again,
            )
        case Status.INTERRUPTED:
            return Headline(RunVerdict.FAILED, f"Interrupted{at}", f"It has {detail}.", again)
        case Status.RUNNING:
            return Headline(RunVerdict.GOING, f"Training{at}", detail)
        case Status.EMPTY:
            return Headline(RunVerdict.DEGRADED, "Nothing on record yet")


def _end_word(facts: RunFacts, word: str) -> str:
    """Return `Interrupted` for a run that Ctrl-C ended, else `word`."""
    return "Interrupted" if facts.outcome.get("exit_code") == ExitCode.INTERRUPTED else word


def root_error(facts: RunFacts) -> str:
    """Return the root error of a program, verbatim; empty if none is on record."""
    failure = read_failure(facts.outcome)
    return failure.error if failure is not None and failure.error != facts.outcome.get("reason") else ""


def position(facts: RunFacts) -> str:
    """` at step 340 of 600`; empty when the step is not known."""
    if facts.step is None:
        return ""
    return f" at step {facts.step:,}" + (f" of {facts.steps:,}" if facts.steps else "")
