"""The job summary on GitHub: the verdict first, then the proof and the curve; the rest is folded.

GitHub's summaries show neither inline SVG nor `data:` pictures, so the curve is a Mermaid chart, which GitHub
draws; elsewhere its numbers can be read. Text that comes from the run is escaped, so it cannot add markup.
"""

import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from trainyard.report.dashboard.text import utc
from trainyard.report.facts.config_changes import (
    ConfigChange,
    changes_from_defaults,
    config_changes,
    format_setting,
)
from trainyard.report.facts.curve import average_curve
from trainyard.report.facts.figures import brief_figures
from trainyard.report.facts.log_tail import failure_log
from trainyard.report.facts.next_commands import restore_newest, run_links
from trainyard.report.facts.quantities import format_count, loss_or_empty
from trainyard.report.facts.run_facts import RunFacts
from trainyard.report.facts.troubles import alert_lines, degradation
from trainyard.report.facts.verdict_line import Headline, RunVerdict, run_headline
from trainyard.run.sizes import format_size
from trainyard.run.suggested_commands import is_command

CHART_POINTS = 60
# Lines on GitHub's white and its black page; Mermaid's own first colour, #ECECFF, cannot be seen on white.
PALETTE = {"blue": "#2f81f7", "orange": "#d9730d", "green": "#2a9d4a", "purple": "#a371f7", "red": "#e5534b"}
_CHECKPOINTS = 20
_CHANGES = 50
_MARKUP = re.compile(r"([\\`*_{}\[\]<>|~#&@])")


def markdown_report(facts: RunFacts) -> str:
    """The complete summary, ending in a newline; far below GitHub's limit of 1 MiB."""
    head, trouble, (log_name, log) = run_headline(facts), degradation(facts), failure_log(facts)
    past_alerts = [] if facts.state.going else alert_lines(facts)
    parts = [
        f"### {head.verdict.symbol} {escape_markdown(head.text)} · {_name(facts)}".replace("###  ", "### "),
        *_failure(head, facts),
        f"{RunVerdict.DEGRADED.symbol} {escape_markdown(trouble)}" if trouble else "",
        "\n".join(f"- {escape_markdown(line)}" for line in past_alerts),
        " · ".join(brief_figures(facts, strong="**{}**".format, escaped=escape_markdown)),
        _links(facts),
        _proof_table(facts),
        _details(f"The end of {escape(log_name)}", fence_code(log)) if log else "",
        _figure_table(facts),
        _curve(facts),
        _checkpoints(facts),
        _sample(facts),
        _configuration(facts),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def escape_markdown(text: str) -> str:
    """`text` in one line, escaped so that Markdown and HTML in it are shown as text."""
    return _MARKUP.sub(r"\\\1", " ".join(text.split()))


def fence_code(text: str, language: str = "") -> str:
    """`text` as a code block; its fence is longer than any row of backticks in the text."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def _name(facts: RunFacts) -> str:
    """`run 812`, with the segment's number if there were several."""
    segments = sum(event.get("event") in ("started", "resumed") for event in facts.events)
    return escape_markdown(facts.title) + (f" · segment {segments}" if segments > 1 else "")


def _links(facts: RunFacts) -> str:
    """Links to the commit, the workflow run and its artifacts, and the place in the store."""
    links = run_links(facts, is_beside=False)
    parts = [f"[{escape_markdown(words)}]({address})" for words, address in links]
    proof = facts.proof
    if proof is not None and proof.store and proof.run_number is not None:
        stored = f"{proof.store.rstrip('/')}/run-{proof.run_number}".replace("`", "'")
        parts.append(f"stored in `{' '.join(stored.split())}`")
    return " · ".join(parts)


def _failure(head: Headline, facts: RunFacts) -> Iterable[str]:
    """The reason, the last good checkpoint and the next command of a run that is not proven."""
    if head.reason:
        yield escape_markdown(head.reason)
    if head.verdict is RunVerdict.PROVEN or not head.next_step:
        return
    if facts.checkpoints:
        last = facts.checkpoints[-1]
        yield f"Last good checkpoint: step {last.step:,}, {format_size(last.size)}."
    yield "Next:\n\n" + fence_code(head.next_step, "sh" if is_command(head.next_step) else "")


def _proof_table(facts: RunFacts) -> str:
    if facts.proof is None:
        return ""
    rows = [
        f"| {escape_markdown(part.name)} | {part.symbol} | {escape_markdown(part.evidence)} |"
        for part in facts.proof.parts
    ]
    return "\n".join(["| proof | | evidence |", "|---|---|---|", *rows])


def _figure_table(facts: RunFacts) -> str:
    """The figures of the proof, beside those of the last green run and their thresholds."""
    proof = facts.proof
    if proof is None or not (proof.compared_with or any(each.threshold for each in proof.figures)):
        return ""
    rows = [
        f"| {escape_markdown(each.name)} | {each.mark} {loss_or_empty(each.value)} "
        f"| {loss_or_empty(each.baseline)} | {escape_markdown(each.threshold)} |"
        for each in proof.figures[:_CHANGES]
    ]
    was = escape_markdown(proof.compared_with or "last green run")
    return "\n".join([f"| figure | this run | {was} | threshold |", "|---|---|---|---|", *rows])


def _curve(facts: RunFacts) -> str:
    """A chart of the reward, or of the training loss with the validation loss.

    Each point of the training loss is the mean of neighbouring rows. All lines of a chart have its range of
    steps, so that of the validation is level before its first step, which the title states.
    """
    import numpy as np

    name, title = ("reward", "Reward") if len(facts.curve("reward")) else ("loss", "Training loss")
    points = average_curve(facts.curve(name), CHART_POINTS)
    if len(points) < 3 or points.steps[-1] <= points.steps[0]:
        return ""
    begin, end = points.steps[0], points.steps[-1]
    validation = facts.curve("val_loss")
    lines: dict[str, Iterable[float]] = {title: points.values}
    if name == "loss" and len(validation) >= 2:
        steps = np.linspace(begin, end, CHART_POINTS)
        checked = np.interp(steps, validation.steps, validation.values)
        lines[f"validation loss from step {validation.steps[0]:.0f}"] = checked
    return line_chart(name, begin, end, lines)


def line_chart(name: str, begin: float, end: float, lines: Mapping[str, Iterable[float]]) -> str:
    """Return a Mermaid chart of one figure: title -> values at evenly spaced steps.

    It has no legend, so its title says which colour is which line.
    """
    rows = [list(values) for values in lines.values()]
    low, high = min(map(min, rows)), max(map(max, rows))
    margin = 0.0 if high > low else 0.5  # the ends of an axis must differ
    colours = [colour for colour, _ in zip(itertools.cycle(PALETTE), rows, strict=False)]
    titles = [re.sub(r'["`]', "", title) for title in lines]
    if len(rows) > 1:
        titles = [f"{title} ({colour})" for title, colour in zip(titles, colours, strict=True)]
    theme = {"xyChart": {"plotColorPalette": ", ".join(PALETTE[colour] for colour in colours)}}
    chart = [
        f"%%{{init: {json.dumps({'themeVariables': theme})}}}%%",
        "xychart-beta",
        f'    title "{", ".join(titles)}"',
        f'    x-axis "step" {begin:.0f} --> {end:.0f}',
        f'    y-axis "{name}" {low - margin:.4g} --> {high + margin:.4g}',
        *(f"    line [{', '.join(f'{value:.4g}' for value in row)}]" for row in rows),
    ]
    return fence_code("\n".join(chart), "mermaid")


def _checkpoints(facts: RunFacts) -> str:
    if not facts.checkpoints:
        return ""
    shown = facts.checkpoints[-_CHECKPOINTS:]
    rows = [f"| {c.step:,} | {format_size(c.size)} | {c.files} | {utc(c.created)} |" for c in reversed(shown)]
    table = "\n".join(["| step | size | files | saved |", "|---:|---:|---:|---|", *rows])
    command, how = restore_newest(facts), "Restore it on any machine; for another checkpoint change --step"
    restore = f"{how}:\n\n{fence_code(command, 'sh')}" if command else ""
    return _details(f"Checkpoints ({len(facts.checkpoints)})", "\n\n".join(filter(None, (table, restore))))


def _sample(facts: RunFacts) -> str:
    if facts.sample is None:
        return ""
    return _details("What the model writes", fence_code(facts.sample))


def _configuration(facts: RunFacts) -> str:
    """The changes since the last green run; where there is none, the settings that are not the defaults."""
    green, changes = config_changes(facts.directory) or ("", changes_from_defaults(facts.directory))
    if green and not changes:
        return f"The configuration has not changed since the last green run, {escape_markdown(green)}."
    if not changes:
        return ""
    than = f"changed since the last green run, {escape(green)}" if green else "not at the default"
    table = setting_table(changes, ("baseline" if green else "default", "this run"))
    return _details(f"Configuration: {format_count(len(changes), 'key')} {than}", table)


def setting_table(changes: Sequence[ConfigChange], heads: Sequence[str]) -> str:
    """Return the changed settings as a Markdown table, at most 50 of them; `heads` name the runs."""
    rows = [
        [escape_markdown(text) for text in (one.key, *map(format_setting, one.values))]
        for one in changes[:_CHANGES]
    ]
    rows += [["…", *[""] * len(heads)]] if len(changes) > _CHANGES else []
    lines = [["key", *map(escape_markdown, heads)], ["---"] * (len(heads) + 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _details(title: str, body: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{body}\n\n</details>"
