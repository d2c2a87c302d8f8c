"""The verdict on a cluster, for a terminal and for the job summary; the fixes and their results."""

from collections.abc import Mapping
from typing import Any

from trainyard.report.cluster.capacity_text import heading
from trainyard.report.dashboard.markdown import escape_markdown
from trainyard.report.facts.table import wrap_table

Json = Mapping[str, Any]
_MARKS = {"error": "❌", "warning": "⚠️", "skipped": "➖", "passed": "✅"}


def verdict_lines(data: Json, *, width: int) -> list[str]:
    """The verdict, a line for each check, and what to do."""
    rows = [(e["severity"].replace("passed", "ok"), e["check"], e["evidence"]) for e in data["checks"]]
    table = wrap_table(("", "check", "evidence"), rows, width=width)
    lines = [heading(data), "", summarize_verdict(data), "", *table]
    todo = [(entry["check"], entry["fix"]) for entry in _to_do(data)]
    if todo:
        lines += ["", *wrap_table(("check", "what to do"), todo, width=width)]
    return lines


def summarize_verdict(data: Json) -> str:
    """The result in one line."""
    found = [entry["severity"] for entry in data["findings"]]
    counts = [(name, found.count(name)) for name in ("error", "warning", "skipped")]
    counted = ", ".join(f"{n} {name}{'s' if n > 1 and name != 'skipped' else ''}" for name, n in counts if n)
    return f"{data['verdict'].capitalize()}: {counted or 'every check passed'}."


def verdict_markdown(data: Json) -> str:
    """The verdict for the job summary: the result, what is wrong, all checks folded."""
    mark = "✅" if data["ready"] else "❌"
    title = f"### {mark} {data['verdict'].capitalize()} · {escape_markdown(heading(data))}"
    lines = [title, "", summarize_verdict(data), ""]
    todo = _to_do(data)
    if todo:
        lines += ["| | check | evidence | what to do |", "|---|---|---|---|"]
        lines += [f"{_row(entry)} {escape_markdown(entry['fix'])} |" for entry in todo]
        lines.append("")
    lines += ["<details><summary>All checks</summary>", "", "| | check | evidence |", "|---|---|---|"]
    lines += [_row(entry) for entry in data["checks"]]
    return "\n".join([*lines, "", "</details>", ""])


def _row(entry: Json) -> str:
    return f"| {_MARKS[entry['severity']]} | {entry['check']} | {escape_markdown(entry['evidence'])} |"


def verdict_refusal(data: Json) -> str:
    """The first error in one line, for an annotation and the step's output."""
    first = next((e for e in data["findings"] if e["severity"] == "error"), None)
    return summarize_verdict(data) + (f" {first['check']}: {first['evidence']}" if first else "")


def _to_do(data: Json) -> list[Json]:
    order = ("error", "warning")
    found = [entry for entry in data["findings"] if entry["severity"] in order and entry["fix"]]
    return sorted(found, key=lambda entry: order.index(entry["severity"]))


def fix_lines(data: Mapping[str, Any], *, width: int) -> list[str]:
    """The safe steps first, then those that a person has to do."""
    steps = data["steps"]
    if not steps:
        return ["Nothing needs to be done."]
    automatic = [step for step in steps if step["automatic"]]
    manual = [step for step in steps if not step["automatic"]]
    lines: list[str] = []
    if automatic:
        lines.append("Applied:" if data["applied"] else "Would be applied with --apply:")
        rows = [(step["result"] or "planned", step["check"], _with_objects(step)) for step in automatic]
        lines += wrap_table(("", "check", "step"), rows, width=width)
    if manual:
        lines += ["", "To be done by people:"] if lines else ["To be done by people:"]
        rows = [("", step["check"], f"{step['what']} → {step['command']}") for step in manual]
        lines += wrap_table(("", "check", "step"), rows, width=width)
    return lines


def cluster_lines(data: Mapping[str, Any], *, width: int) -> list[str]:
    """The clusters of an account and region."""
    clusters = data["clusters"]
    if not clusters:
        return ["There are no EKS and no HyperPod clusters in this region."]
    rows = [(c["name"], c["type"], c["status"], _about(c)) for c in clusters]
    return wrap_table(("cluster", "type", "status", ""), rows, width=width)


def _with_objects(step: Mapping[str, Any]) -> str:
    objects = step["objects"]
    shown = ", ".join(objects[:3]) + (f" and {len(objects) - 3} more" if len(objects) > 3 else "")
    return f"{step['what']} ({shown})"


def _about(cluster: Mapping[str, Any]) -> str:
    if cluster["type"] == "eks":
        return f"Kubernetes {cluster['version']}"
    groups = ", ".join(
        f"{g['name']} {g['count']} of {g['target']} × {g['instance_type']}"
        for g in cluster["instance_groups"]
    )
    unhealthy = len(cluster["unhealthy"])
    sick = f"; {unhealthy} of {cluster['nodes']} nodes not running" if unhealthy else ""
    behind = f"EKS {cluster['eks_cluster']}" if cluster["eks_cluster"] else "Slurm"
    return f"{behind}; recovery {cluster['node_recovery']}; {groups or 'no groups'}{sick}"
