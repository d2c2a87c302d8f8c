"""What Slack is told of a run: Block Kit and the same in plain text for notifications. It sends nothing.

The message follows what is on record, not what the caller hopes: `succeeded` without a proof says so. Text of
the run is escaped and cut to Slack's limits: https://docs.slack.dev/reference/block-kit/blocks/section-block
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from urllib.parse import quote

from trainyard.report.facts import RunFacts
from trainyard.report.headline import Headline, Verdict, figures, headline
from trainyard.report.history import number
from trainyard.report.resolved_config import config_value
from trainyard.run.commands import is_command

SECTION_CHARACTERS = 3000
_ESCAPES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


class Moment(StrEnum):
    """When the message is sent."""

    STARTED = "started"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


@dataclass(frozen=True)
class SlackMessage:
    """A message as Slack takes it."""

    text: str
    """What notifications and screen readers show."""
    blocks: list[dict[str, Any]]


@dataclass(frozen=True)
class Surroundings:
    """Where the pipeline runs; all of it may be unknown."""

    name: str
    """Of the run, while it has no number: its directory."""
    ci: Mapping[str, str] = field(default_factory=dict)
    """`identity.ci_facts`."""
    runner: str | None = None


def slack_message(moment: Moment, facts: RunFacts | None, around: Surroundings) -> SlackMessage:
    """The message; `facts` is None while there is no run directory."""
    head = headline(facts) if facts is not None else None
    title, symbol = _title(moment, head, around.ci.get("run_number") or _number(facts, around))
    parts = _about(facts, around) if moment is Moment.STARTED else _result(facts)
    first = " · ".join([f"{symbol} *{mrkdwn(title, 300)}*".strip(), *parts, *_links(around.ci)])
    blocks = [_section(first)]
    if moment is not Moment.STARTED:
        blocks += [_section(text) for text in (_proof(facts), _what_next(head)) if text]
    blocks.append({"type": "context", "elements": [{"type": "mrkdwn", "text": mrkdwn(around.name, 300)}]})
    plain = " · ".join([f"{symbol} {mrkdwn(title, 300)}".strip(), *parts])
    return SlackMessage(re.sub(r"[*`]", "", plain), blocks)


def mrkdwn(text: str, limit: int) -> str:
    """`text` in one line with Slack's special characters escaped, at most `limit` characters long."""
    result = ""
    for character in " ".join(text.split()):
        piece = _ESCAPES.get(character, character)
        if len(result) + len(piece) >= limit:
            return result + "…"
        result += piece
    return result


def _title(moment: Moment, head: Headline | None, name: str) -> tuple[str, str]:
    """What happened, and the sign for it."""
    if moment is Moment.STARTED:
        return f"Training {name} started", ""
    if head is None:
        return f"Training {name} {moment}, and left no run directory", Verdict.FAILED.symbol
    if moment is Moment.FAILED and head.verdict is Verdict.PROVEN:
        return f"Training {name} is proven, but a later step failed", Verdict.DEGRADED.symbol
    if moment is Moment.FAILED and head.verdict in (Verdict.GOING, Verdict.DEGRADED):
        return f"Training {name} failed: {_lower(head.text)}", Verdict.FAILED.symbol
    if head.verdict is Verdict.PROVEN:
        return f"Training {name} proven", head.verdict.symbol
    return f"Training {name}: {_lower(head.text)}", head.verdict.symbol


def _number(facts: RunFacts | None, around: Surroundings) -> str:
    return str(facts.run_number or facts.name) if facts is not None else around.name


def _about(facts: RunFacts | None, around: Surroundings) -> list[str]:
    """`main@3f2c1ab` by push, and what is trained where."""
    git = facts.section("git") if facts is not None else {}
    branch = re.sub(r"^refs/(heads|tags)/", "", str(around.ci.get("ref") or git.get("branch") or ""))
    commit = str(around.ci.get("sha") or git.get("commit") or "")[:7]
    source = "@".join(text for text in (branch, commit) if text).replace("`", "'")
    event = around.ci.get("event")
    parts = [f"`{mrkdwn(source, 200)}`" + (f" by {mrkdwn(event, 50)}" if event else "")] if source else []
    config = facts.config_text if facts is not None else None
    model, steps = config_value(config, "model.name"), number(config_value(config, "training.max_steps"))
    planned = (facts.steps if facts is not None else None) or steps
    what = [mrkdwn(str(model), 100)] if model else []
    what += [f"{planned:,.0f} steps"] if planned else []
    place = f" on {mrkdwn(around.runner, 100)}" if around.runner else ""
    return [*parts, (", ".join(what) + place).strip()] if what or place else parts


def _result(facts: RunFacts | None) -> list[str]:
    return [] if facts is None else figures(facts, escaped=lambda text: mrkdwn(text, 100))


def _links(ci: Mapping[str, str]) -> list[str]:
    if not all(ci.get(key) for key in ("server", "repository", "run_id")):
        return []
    address = f"{ci['server']}/{ci['repository']}/actions/runs/{ci['run_id']}"
    return [f"<{quote(address, safe=':/')}|run>"]


def _proof(facts: RunFacts | None) -> str:
    if facts is None or facts.proof is None:
        return ""
    return "\n".join(
        f"{'✅' if part.holds else '❌'} {mrkdwn(part.name, 50)}: {mrkdwn(part.evidence, 500)}"
        for part in facts.proof.parts[:4]
    )


def _what_next(head: Headline | None) -> str:
    """The reason, where the proof does not tell it, and the command that goes on."""
    if head is None or head.verdict in (Verdict.PROVEN, Verdict.GOING):
        return ""
    step = mrkdwn(head.next_step.replace("`", "'"), 900)
    command = f"`{step}`" if is_command(step) else step
    lines = [mrkdwn(head.reason, 1200), f"Next: {command}" if command else ""]
    return "\n".join(line for line in lines if line)


def _section(text: str) -> dict[str, Any]:
    return {"type": "section", "text": {"type": "mrkdwn", "text": text[:SECTION_CHARACTERS]}}


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
