"""A job for GitHub Actions: the outputs of a step, and Markdown for the summary of a workflow's job."""

from collections.abc import Mapping
from typing import Any

from trainyard.report.jobs.job_text import failure_place, next_job_command
from trainyard.run.suggested_commands import DEFAULT_CLUSTER, ClusterTarget

Json = Mapping[str, Any]
_MARKS = {"Succeeded": "✅", "Failed": "❌", "Unknown": "❌"}
_MOST_LINES = 20


def state_outputs(data: Json, *, exit_code: int) -> dict[str, str]:
    """The state of a job (`JobState.record`) as outputs of the step that followed it.

    While `ended` is not `true`, the job may still run, and another step has to follow it.
    """
    ended = data["status"] in _MARKS
    return {
        "status": data["status"],
        "ended": "true" if ended else "false",
        "exit_code": str(exit_code),
        "reason": data["reason"].split("\n", 1)[0],
    }


def state_error(data: Json, *, exit_code: int) -> tuple[str, str] | None:
    """Title and text of the annotation of a job that has ended without success; None for any other."""
    failed = data["status"] in _MARKS and exit_code
    return (f"{data['job']}: {data['status']}", data["reason"]) if failed else None


def state_markdown(data: Json, target: ClusterTarget = DEFAULT_CLUSTER) -> str:
    """The state of a job: the result first, then the cause, its last lines, and the next command."""
    mark = _MARKS.get(data["status"], "⏳")
    parts = [f"### {mark} {data['status']}: {data['kind']} `{data['job']}`", "", _cell(data["reason"])]
    parts += [f"\nproof: {data['proof']}"] if data["proof"] else []
    parts += [f"\n⚠️ {_cell(alert)}" for alert in data["alerts"]]
    failure = data["failure"] or {}
    if failure:
        parts += ["", ", ".join([f"class **{failure['class']}**", *failure_place(failure)])]
        if failure.get("fix"):
            who = f" ({failure['responsible']})" if failure["responsible"] else ""
            parts += ["", f"{failure['cause']}. Fix{who}: {failure['fix']}".replace("<", "&lt;")]
        lines = [line.replace("~~~", "~ ~ ~") for line in failure["lines"][-_MOST_LINES:]]
        parts += ["", "~~~~~~", *lines, "~~~~~~"] if lines else []
    if command := next_job_command(data, target):
        parts += ["", f"Next: `{command}`"]
    return "\n".join([*parts, ""])


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
