"""The plan of a workflow run as its job summary shows it before anything starts.

It reads the plain data of `plan.run_plan` and `plan.training_plan`, and names the figures that are not known.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trainyard.report.dashboard.markdown import escape_markdown, fence_code
from trainyard.report.facts.quantities import format_count, format_scaled
from trainyard.report.plan.plan_text import expectation_rows, plan_text_lines, unproven_lines

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
    plan: Mapping[str, Any] = field(default_factory=dict)
    """The JSON of `training_plan`; empty where the machine or the recipe cannot be planned for."""
    why_not: str = ""
    """Why there is no plan; empty with one."""
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
    missing_settings: "Sequence[MissingSetting]", *, is_refused: bool, hint: str
) -> str:
    """The reason why nothing is trained and the commands that change it, as an annotation or an error."""
    return "\n".join(
        [f"{_headline(missing_settings, is_refused)}.", *(each.command for each in missing_settings), hint]
    )


def missing_settings_markdown(
    missing_settings: "Sequence[MissingSetting]", *, is_refused: bool, hint: str
) -> str:
    """The same as a job summary, ending in a newline."""
    parts = [
        f"### {'❌ ' if is_refused else ''}{_headline(missing_settings, is_refused)}",
        "This command sets it up:" if len(missing_settings) == 1 else "These commands set it up:",
        fence_code("\n".join(each.command for each in missing_settings)),
    ]
    parts.append(hint)
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
    for name, text in _expectations(planned).items():
        yield name, escape_markdown(text)


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


def _expectations(planned: RunPreview) -> dict[str, str]:
    """Return length, time and cost, in the words of the plan if there is one."""
    rows = dict(expectation_rows(planned.plan) if planned.plan else ())
    open_end = "until the program ends" if planned.parameters is None else "until the epochs are done"
    steps = planned.steps
    rows.setdefault("length", open_end if steps is None else f"at most {format_count(steps, 'step')}")
    if planned.why_not:
        rows["time"] = f"not known: {planned.why_not}"
    if (rate := planned.usd_per_hour) is not None:
        each = f"$ {rate:,.2f} an hour (TRAINYARD_USD_PER_HOUR)"
        seconds = planned.plan.get("estimate", {}).get("seconds")
        rows["cost"] = each if seconds is None else f"about $ {seconds / 3600 * rate:,.2f} at {each}"
    return rows | {"cost": rows.get("cost", f"not known: {_PRICE}")}


def _code(text: str) -> str:
    """`text` as code in a table cell; characters that would end the code or the cell are replaced."""
    plain = " ".join(text.replace("`", "'").replace("|", "¦").split())
    return f"`{plain[:200]}`" if plain else ""
