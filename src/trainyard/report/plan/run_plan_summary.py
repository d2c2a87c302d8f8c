"""The plan of a workflow run as its job summary shows it before anything starts.

It reads the plain data of `plan.run_plan` and `plan.training_plan`, and names the figures that are not known.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trainyard.report.dashboard.markdown import escape_markdown, fence_code
from trainyard.report.facts.quantities import format_count, format_duration, format_scaled
from trainyard.report.plan.plan_text import plan_text_lines, unproven_lines

if TYPE_CHECKING:
    from trainyard.github.run_plan import MissingSetting

_PRICE = "TRAINYARD_INSTANCE_TYPE or TRAINYARD_USD_PER_HOUR gives it a price"


@dataclass(frozen=True)
class RunPreview:
    """A workflow run that is about to start."""

    outputs: Mapping[str, Any]
    """The plan for the later jobs, `RunPlan.job_plan`."""
    target: str
    labels: Sequence[str]
    model: str
    """The model, or the command of another program."""
    parameters: int | None
    """None for another program, whose model is not known."""
    config_sha256: str
    steps: int | None
    tokens_per_step: int | None
    plan: Mapping[str, Any] = field(default_factory=dict)
    """The JSON of `training_plan`; empty where the machine or the recipe cannot be planned for."""
    why_not: str = ""
    """Why there is no plan."""
    usd_per_hour: float | None = None
    """The machine's price from TRAINYARD_USD_PER_HOUR; it replaces the catalogue's price."""
    missing_settings: "Sequence[MissingSetting]" = ()
    """The variables that have to be set before the run can train."""
    unproven: Sequence[Mapping[str, str]] = ()
    """The parts of the proof that cannot hold, as `proof.reachable_parts` finds them."""


def markdown_plan(planned: RunPreview) -> str:
    """The summary, ending in a newline."""
    only = not planned.outputs["trains"]
    segment = int(planned.outputs["segment"])
    part = f" · segment {segment} of at most {planned.outputs['most_segments']}" if segment > 1 else ""
    what = _code(planned.model) if planned.parameters is None else escape_markdown(planned.model)
    target = escape_markdown(planned.target)
    title = f"### {'Dry run' if only else 'Plan'}: {what} on {target}{part}"
    rows = [f"| {name} | {value} |" for name, value in _rows(planned)]
    warnings = [f"⚠️ This run {escape_markdown(line)}" for line in unproven_lines(planned.unproven)]
    parts = [title, *warnings, "\n".join(["| | |", "|---|---|", *rows])]
    if planned.plan:
        text = fence_code("\n".join(plan_text_lines(planned.plan)))
        parts.append(f"<details><summary>Memory, time and cost</summary>\n\n{text}\n\n</details>")
    if only:
        parts.append("Nothing was started.")
    if planned.missing_settings:
        what = " and ".join(each.what for each in planned.missing_settings)
        commands = fence_code("\n".join(each.command for each in planned.missing_settings))
        parts.append(f"To train, the repository has to say {what}:\n\n{commands}")
    return "\n\n".join(parts) + "\n"


def missing_settings_text(
    missing_settings: "Sequence[MissingSetting]", *, is_refused: bool, hints: Sequence[str] = ()
) -> str:
    """The reason why nothing is trained and the commands that change it, as an annotation or an error."""
    return "\n".join(
        [f"{_headline(missing_settings, is_refused)}.", *(each.command for each in missing_settings), *hints]
    )


def missing_settings_markdown(
    missing_settings: "Sequence[MissingSetting]", *, is_refused: bool, hints: Sequence[str] = ()
) -> str:
    """The same as a job summary, ending in a newline."""
    parts = [
        f"### {'❌ ' if is_refused else ''}{_headline(missing_settings, is_refused)}",
        "This command sets it up:" if len(missing_settings) == 1 else "These commands set it up:",
        fence_code("\n".join(each.command for each in missing_settings)),
    ]
    if hints:
        parts.append("\n".join(f"- {hint}" for hint in hints))
    if not is_refused:
        parts.append("Until then a push and the daily run end here, after a few minutes of a hosted runner.")
    return "\n\n".join(parts) + "\n"


def _headline(missing_settings: "Sequence[MissingSetting]", is_refused: bool) -> str:
    happened = "Nothing was started" if is_refused else "Nothing was trained"
    return f"{happened}: the repository does not say {' and '.join(each.what for each in missing_settings)}"


def summarize_expectations(planned: RunPreview) -> str:
    """Model, steps, time and cost where known, as the JSON that the message of the start reads."""
    estimate = dict(planned.plan.get("estimate", {}))
    if planned.usd_per_hour is not None and "seconds" in estimate:
        estimate["usd"] = estimate["seconds"] / 3600 * planned.usd_per_hour
    length = {} if planned.steps is None else {"steps": planned.steps}
    return json.dumps({"model": planned.model, **length, "estimate": estimate})


def _rows(planned: RunPreview) -> Iterator[tuple[str, str]]:
    outputs = planned.outputs
    yield "configuration", f"{_code(outputs['config'])}, digest {_code(planned.config_sha256[:12])}"
    if outputs["overrides"]:
        yield "changed", ", ".join(_code(change) for change in outputs["overrides"].splitlines())
    yield "commit", _code(outputs["commit"][:12])
    yield "machine", ", ".join(_code(label) for label in planned.labels) or _machine_without_labels(planned)
    store = _code(outputs["store"]) or "a store that is not named yet"
    yield "run", f"{_code(outputs['run_id'])}, number {outputs['run_number']} in {store}"
    yield "begins", _start(outputs["resume"], int(outputs["segment"]))
    deadline = escape_markdown(outputs["deadline"])
    yield "stops itself", f"after {deadline} with a checkpoint, and continues in another segment"
    if planned.parameters is None:
        yield "program", _code(planned.model)
    else:
        yield "model", f"{escape_markdown(planned.model)}, {format_scaled(planned.parameters)} parameters"
    yield "length", _length(planned)
    yield "time", _time(planned)
    yield "cost", _cost(planned)


def _machine_without_labels(planned: RunPreview) -> str:
    asks = [each.variable for each in planned.missing_settings if each.what == "where to train"]
    return f"not named yet: {_code(asks[0])} is not set" if asks else "the machine that this command runs on"


def _start(resume: str, segment: int) -> str:
    if segment > 1:
        return "where the previous segment ended: the runner's own directory, else the store"
    if resume == "none":
        return "at step 0"
    if resume == "auto":
        return "at step 0, or where an earlier attempt of this run ended"
    return f"from {_code(resume)}"


def _length(planned: RunPreview) -> str:
    if planned.steps is None:
        return "until the program ends" if planned.parameters is None else "until the epochs are done"
    if planned.tokens_per_step is None:
        return f"at most {format_count(planned.steps, 'step')}"
    tokens = format_scaled(planned.steps * planned.tokens_per_step)
    return f"at most {format_count(planned.steps, 'step')}, {tokens} tokens"


def _time(planned: RunPreview) -> str:
    seconds = planned.plan.get("estimate", {}).get("seconds")
    if seconds is None:
        return f"not known: {escape_markdown(planned.why_not or 'no peak is on record for this device')}"
    return f"about {format_duration(seconds)}"


def _cost(planned: RunPreview) -> str:
    estimate, device = planned.plan.get("estimate", {}), planned.plan.get("device", {})
    seconds, rate = estimate.get("seconds"), planned.usd_per_hour
    if rate is not None:
        each = f"$ {rate:,.2f} an hour (TRAINYARD_USD_PER_HOUR)"
        return f"about **$ {seconds / 3600 * rate:,.2f}** at {each}" if seconds is not None else each
    if "usd" in estimate:
        return f"about **$ {estimate['usd']:,.2f}** ({device['instance_type']}, {device['prices_as_of']})"
    return f"not known: {_PRICE}"


def _code(text: str) -> str:
    """`text` as code in a table cell; characters that would end the code or the cell are replaced."""
    plain = " ".join(text.replace("`", "'").replace("|", "¦").split())
    return f"`{plain[:200]}`" if plain else ""
