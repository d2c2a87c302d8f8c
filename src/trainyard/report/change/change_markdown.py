"""The comparison of base and head as Markdown, for a job summary and for a comment on a pull request.

The comment holds a hidden mark, by which the next comparison finds and replaces it. All text that the
change's code wrote is escaped.
"""

from statistics import median

from trainyard.report.change.change import ChangeVerdict, ComparedFigure, Comparison
from trainyard.report.dashboard.markdown import escape_markdown, fence_code
from trainyard.report.facts.quantities import (
    format_count,
    format_loss,
    format_percent,
    format_scaled,
    format_size,
)

MARK = "<!-- trainyard: comparison of base and head -->"
_SIGNS = {
    ChangeVerdict.EQUAL: "✅",
    ChangeVerdict.WITHIN: "✅",
    ChangeVerdict.BETTER: "✅ better",
    ChangeVerdict.WORSE: "❌ worse",
}


def markdown(comparison: Comparison, *, address: str = "") -> str:
    """The verdict first, then the table, then how it was measured; `address` is the URL of the log."""
    parts = [
        f"### {_title(comparison)}",
        _reason(comparison),
        _table(comparison),
        _weights(comparison),
        _folded(comparison),
        f"[log]({address})" if address else "",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def comment(comparison: Comparison, *, address: str = "") -> str:
    """The Markdown with the hidden mark, as the body of a comment."""
    return f"{MARK}\n{markdown(comparison, address=address)}"


def _title(comparison: Comparison) -> str:
    commits = " → ".join(
        f"`{escape_markdown(side.commit[:7])}`" for side in (comparison.base, comparison.head)
    )
    if comparison.head.problem:
        return f"❌ It does not train any more · {commits}"
    if comparison.base.problem:
        return f"⚠ Nothing to compare with · {commits}"
    if comparison.worse:
        return f"❌ Worse: {', '.join(comparison.worse)} · {commits}"
    return f"✅ No regression · {commits}"


def _reason(comparison: Comparison) -> str:
    parts = []
    for name, side in (("head", comparison.head), ("base", comparison.base)):
        if side.problem:
            parts.append(f"The {name} could not be run to the end:\n\n{fence_code(side.problem)}")
    return "\n\n".join(parts)


def _table(comparison: Comparison) -> str:
    if not comparison.figures:
        return ""
    rows = [_row(figure) for figure in comparison.figures]
    return "\n".join(["| | base | head | change | |", "|---|---:|---:|---:|---|", *rows])


def _row(figure: ComparedFigure) -> str:
    sides = " | ".join(_side(figure.name, values) for values in (figure.base, figure.head))
    return f"| {figure.name} | {sides} | {_change(figure)} | {_SIGNS[figure.verdict]} |"


def _side(name: str, values: tuple[float, ...]) -> str:
    """The median, with the lowest and the highest value when the runs differ."""
    low, middle, high = (_written(name, value) for value in (min(values), median(values), max(values)))
    return middle if low == high else f"{middle} ({low} to {high})"


def _written(name: str, value: float) -> str:
    if name == "memory":
        return format_size(value)
    return format_scaled(value) if name == "tokens/s" else format_loss(value)


def _change(figure: ComparedFigure) -> str:
    if figure.verdict is ChangeVerdict.EQUAL:
        return "none"
    change = figure.change
    if abs(change) < 0.0005:
        return "below 0.1 %"
    return f"{change:+.1%}".replace("%", " %").replace("-", "−")


def _weights(comparison: Comparison) -> str:
    if not (comparison.base.runs and comparison.head.runs):
        return ""
    steps = format_count(comparison.head.runs[-1].steps, "step")
    words = "equal to the bit" if comparison.same_weights else "not the same"
    return f"The weights after {steps} are {words}."


def _folded(comparison: Comparison) -> str:
    rules = comparison.rules
    shares = {"loss": rules.loss, "tokens/s": rules.tokens_per_second, "memory": rules.memory}
    limits = ", ".join(f"{name} {format_percent(share)}" for name, share in shares.items())
    sets = " ".join(f"--set {override}" for override in rules.overrides)
    body = (
        f"Each side ran `{_code(rules.config)}` {_times(rules.repeats)} on the CPU of one machine, in turns"
        f"{f', with `{_code(sets)}`' if sets else ''}.\n"
        f"A figure is worse when it is beyond its limit ({limits}), "
        "and every run of the head is worse than every run of the base.\n"
        "Limits and runs are set in `.github/comparison.yml` of the base.\n\n"
        + fence_code("scripts/compare_change.py --base ../base --head . --output comparison.json", "sh")
    )
    return f"<details><summary>How it was measured</summary>\n\n{body}\n\n</details>"


def _code(text: str) -> str:
    return " ".join(text.replace("`", "'").split())[:300]


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def reasons(comparison: Comparison) -> list[tuple[str, str]]:
    """Title and text of each reason for refusing the change; empty when it is not refused."""
    lines = [line for line in comparison.head.problem.splitlines() if line.strip()]
    found = [("It does not train any more", "\n".join(lines[-3:])[:900])] if lines else []
    worse = (figure for figure in comparison.figures if figure.verdict is ChangeVerdict.WORSE)
    return found + [
        (f"Worse: {figure.name}", f"{_side(figure.name, figure.base)} → {_side(figure.name, figure.head)}")
        for figure in worse
    ]
