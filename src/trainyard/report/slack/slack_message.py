"""Slack messages about a run: Block Kit, and plain text for notifications. It sends nothing.

The start and the end go to the channel, everything between to the thread (`slack_thread`). The message
follows the run's record and not the caller's claim: for `succeeded` without a proof it says that the proof is
missing. Text that comes from the run is escaped and cut to Slack's limits:
https://docs.slack.dev/reference/block-kit/blocks/section-block
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trainyard.proof import PARTS
from trainyard.report.facts.figures import brief_figures
from trainyard.report.facts.history import finite_or_none
from trainyard.report.facts.log_tail import lines_around_error
from trainyard.report.facts.proof_record import ProofRecord
from trainyard.report.facts.quantities import format_duration, format_loss, format_money
from trainyard.report.facts.run_facts import RunFacts
from trainyard.report.facts.troubles import degradation
from trainyard.report.facts.verdict_line import Headline, RunVerdict, position, run_headline
from trainyard.report.slack.slack_events import SlackEvent
from trainyard.run.identity import run_address
from trainyard.run.run_settings import setting
from trainyard.run.suggested_commands import is_command

SECTION_CHARACTERS = 3000
_MOST_FIGURES = 10
_ESCAPES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


@dataclass(frozen=True)
class SlackMessage:
    """A message in the form of Slack's API."""

    text: str
    """The text for notifications and screen readers."""
    blocks: list[dict[str, Any]]
    title: str = ""
    """The event in Slack's markup; the thread's first message is edited to begin with it."""
    about: str = ""
    """The text after the title of a thread's first message; empty for all other messages."""


@dataclass(frozen=True)
class Surroundings:
    """Place where the pipeline runs; all but the name may be unknown."""

    name: str
    """The run's directory, which names the run while it has no number."""
    ci: Mapping[str, str] = field(default_factory=dict)
    """The result of `identity.ci_facts`."""
    runner: str | None = None
    lineage: str | None = None
    """The name shared by all segments; if None, the number of the workflow run is used."""
    segment: str = ""
    """`2/3`: the second of three segments."""
    reason: str = ""
    """Why it was resumed, degraded, stopped or failed, if the run's record does not say."""
    next_step: str = ""
    plan: Mapping[str, Any] = field(default_factory=dict)
    """`TrainingPlan.to_json`; empty when it was not planned."""


def slack_message(event: SlackEvent, facts: RunFacts | None, around: Surroundings) -> SlackMessage:
    """The message; `facts` is None while there is no run directory."""
    head = run_headline(facts) if facts is not None else None
    recorded = str(facts.run_number or facts.name) if facts is not None else around.name
    name = around.lineage or around.ci.get("run_number") or recorded
    if head is None and event.ends and around.reason:  # without a run directory only the caller knows
        title = f"{RunVerdict.FAILED.symbol} *{mrkdwn(f'Training {name} {event}', 700)}*"
    else:
        words, symbol = _words(event, head, f"Training {name}")
        title = f"{symbol} *{mrkdwn(words + _between(event, facts, around), 700)}*".strip()
    parts = _about(facts, around) if event.begins else _result(event, facts)
    if event.is_failure and head is None and around.reason:
        parts = [mrkdwn(around.reason, 500), *parts]
    links = _links(event, around.ci)
    blocks = [text_block(" · ".join([title, *parts, *links]))]
    if event.explains:
        blocks += [text_block(text) for text in (_proof(facts), _next_step(head, around)) if text]
    if event.is_failure and facts is not None and (lines := lines_around_error(facts)):
        shown = "\n".join(mrkdwn(line.replace("`", "'"), 200) for line in lines)
        blocks.append(text_block(f"```{shown}```"))
    blocks.append(_name_block(around.name))
    about = " · ".join([*parts, *links]) if event.begins else ""
    return SlackMessage(re.sub(r"[*`]", "", " · ".join([title, *parts])), blocks, title, about)


def retitle_thread(title: str, about: str, name: str) -> SlackMessage:
    """The first message of a thread, edited so that `title`, the latest event, comes first."""
    first = " · ".join(part for part in (title, about) if part)
    return SlackMessage(re.sub(r"[*`]", "", title), [text_block(first), _name_block(name)], title, about)


def _name_block(name: str) -> dict[str, Any]:
    return {"type": "context", "elements": [{"type": "mrkdwn", "text": mrkdwn(name, 300)}]}


def mrkdwn(text: str, limit: int) -> str:
    """`text` in one line with Slack's special characters escaped, at most `limit` characters long."""
    pieces = [_ESCAPES.get(character, character) for character in " ".join(text.split())[: limit + 1]]
    while len(pieces) > 1 and sum(map(len, pieces)) >= limit:
        pieces[-2:] = ["…"]
    return "".join(pieces)


def _words(event: SlackEvent, head: Headline | None, name: str) -> tuple[str, str]:
    """What happened, and its emoji."""
    if not event.ends:
        return f"{name} {event}", RunVerdict.DEGRADED.symbol if event.is_trouble else ""
    if head is None:
        return f"{name} {event}, without a run directory", RunVerdict.FAILED.symbol
    if event.is_failure and head.verdict is RunVerdict.PROVEN:
        return f"{name} is proven, but a later step failed", RunVerdict.DEGRADED.symbol
    if event.is_failure and head.verdict in (RunVerdict.GOING, RunVerdict.DEGRADED):
        return f"{name} failed: {_lower(head.text)}", RunVerdict.FAILED.symbol
    if head.verdict is RunVerdict.PROVEN:
        return f"{name} proven", head.verdict.symbol
    return f"{name}: {_lower(head.text)}", head.verdict.symbol


def _between(event: SlackEvent, facts: RunFacts | None, around: Surroundings) -> str:
    """` 2/3 at step 2,340 (runner's time limit)` for events between start and end; empty for those two."""
    if event.begins or event.ends:
        return ""
    at = position(facts) if facts is not None else ""
    reason = around.reason or (degradation(facts) if event.is_trouble else "")
    if event.is_trouble:
        return f"{at}: {reason}" if reason else at
    segment = f" {around.segment}" if around.segment else ""
    return f"{segment}{at}" + (f" ({reason})" if reason else "")


def _about(facts: RunFacts | None, around: Surroundings) -> list[str]:
    """`main@3f2c1ab` by anna (push); model, steps and runner, from the run's record or else from its plan."""
    git = facts.section("git") if facts is not None else {}
    parts = source_of(around.ci, branch=str(git.get("branch") or ""), commit=str(git.get("commit") or ""))
    config = facts.settings if facts is not None else {}
    is_program = config.get("recipe") == "command"  # the model and steps of its record are defaults
    model = None if is_program else setting(config, "model.name")
    model = model or around.plan.get("model")
    steps = finite_or_none(setting(config, "program.steps" if is_program else "training.max_steps"))
    steps = steps or finite_or_none(around.plan.get("steps"))
    planned = (facts.steps if facts is not None else None) or steps
    what = [mrkdwn(str(model), 100)] if model else []
    what += [f"{planned:,.0f} steps"] if planned else []
    place = f" on {mrkdwn(around.runner, 100)}" if around.runner else ""
    parts += [(", ".join(what) + place).strip()] if what or place else []
    return [*parts, *_expectations(around.plan)]


def source_of(ci: Mapping[str, str], *, branch: str = "", commit: str = "") -> list[str]:
    """`main@3f2c1ab` by anna (push): the recorded commit, else GitHub's; empty where neither is known."""
    named = re.sub(r"^refs/(heads|tags)/", "", ci.get("ref") or branch)
    parts = (named, (commit or ci.get("sha", ""))[:7])
    source = "@".join(text for text in parts if text).replace("`", "'")
    return [f"`{mrkdwn(source, 200)}`{_by(ci)}"] if source else []


def _by(ci: Mapping[str, str]) -> str:
    """Who started it and how. A schedule's actor is left out: GitHub names whoever last changed the file."""
    event, actor = ci.get("event", ""), ci.get("actor", "")
    if not event or not actor or event == "schedule":
        return f" by {mrkdwn(event, 50)}" if event else ""
    return f" by {mrkdwn(actor, 50)} ({mrkdwn(event, 50)})"


def _expectations(plan: Mapping[str, Any]) -> list[str]:
    """`about 6 h 12 m, about $ 210`; figures that the plan lacks are left out."""
    estimate = plan.get("estimate")
    known = estimate if isinstance(estimate, Mapping) else {}
    seconds, usd = finite_or_none(known.get("seconds")), finite_or_none(known.get("usd"))
    parts = []
    if seconds is not None and 0 <= seconds < 366 * 86400:
        parts += [f"about {format_duration(seconds)}"]
    parts += [] if usd is None else [f"about {format_money(usd)}"]
    return [", ".join(parts)] if parts else []


def _result(event: SlackEvent, facts: RunFacts | None) -> list[str]:
    if facts is None or not event.ends:
        return []
    return brief_figures(facts, escaped=lambda text: mrkdwn(text, 100))


def _links(event: SlackEvent, ci: Mapping[str, str]) -> list[str]:
    address = run_address(ci)
    if not address:
        return []
    # Its page has the summary. The action alone keeps no artifacts, and those of train.yml are still to come.
    return [f"<{address}|run and report>" if event.ends else f"<{address}|run>"]


def _proof(facts: RunFacts | None) -> str:
    if facts is None or facts.proof is None:
        return ""
    parts = [
        f"{part.symbol} {mrkdwn(part.name, 50)}: {mrkdwn(part.evidence, 500)}"
        for part in facts.proof.parts[: len(PARTS)]
    ]
    return "\n".join([*parts, *_figures(facts.proof)])


def _figures(proof: ProofRecord) -> list[str]:
    """`accuracy 0.63 ✅ threshold >= 0.6, last green run 11: 0.61` for each figure that has one of these."""
    found = []
    for each in proof.figures[:_MOST_FIGURES]:
        value = "not on record" if each.value is None else format_loss(each.value)
        beside = [f"{each.mark} threshold {mrkdwn(each.threshold, 50)}"] if each.threshold else []
        if each.baseline is not None:
            beside.append(f"{mrkdwn(proof.compared_with, 80)}: {format_loss(each.baseline)}")
        found += [f"• {mrkdwn(each.name, 80)} {value} {', '.join(beside)}"] if beside else []
    return found


def _next_step(head: Headline | None, around: Surroundings) -> str:
    """The reason, unless the proof shows it, and the next command."""
    if head is not None and head.verdict in (RunVerdict.PROVEN, RunVerdict.GOING):
        head = None
    reason = around.reason or (head.reason if head else "")
    step = mrkdwn((around.next_step or (head.next_step if head else "")).replace("`", "'"), 900)
    command = f"`{step}`" if is_command(step) else step
    lines = [mrkdwn(reason, 1200), f"Next: {command}" if command else ""]
    return "\n".join(line for line in lines if line)


def text_block(text: str) -> dict[str, Any]:
    """A block of one text, cut to Slack's limit."""
    return {"type": "section", "text": {"type": "mrkdwn", "text": text[:SECTION_CHARACTERS]}}


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
