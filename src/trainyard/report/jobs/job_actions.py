"""A job for GitHub Actions: the outputs of a step, and Markdown for the summary of a workflow's job."""

from collections.abc import Mapping
from typing import Any

from trainyard.report.jobs.job_text import failure_place, next_job_command
from trainyard.run.suggested_commands import DEFAULT_CLUSTER, ClusterTarget

Json = Mapping[str, Any]
_MARKS = {"Succeeded": "✅", "Failed": "❌", "Unknown": "❌"}
_MOST_LINES = 20


def plan_outputs(plan: Json, *, store: str) -> dict[str, str]:
    """The outputs with which later jobs of a workflow find the job (`JobSpec.to_json`) and its store."""
    return {
        "job": plan["name"],
        "kind": plan["kind"],
        "namespace": plan["namespace"],
        "image": plan["image"],
        "store": store,
    }


def plan_markdown(plan: Json, *, store: str) -> str:
    """The plan in a table."""
    gpus, efa = plan["resources"]["gpus"], plan["resources"]["efa"]
    each = f", {gpus} GPUs each" if gpus else ", no GPU"
    each += f", {efa} EFA interfaces each" if efa else ""
    processes = plan["processes_per_node"]
    claim = f"claim `{plan['claim']}` at `{plan['mount_path']}`" if plan["claim"] else "the pod's own disk"
    rows = (
        ("job", f"{plan['kind']} `{plan['name']}` in `{plan['namespace']}`"),
        ("program", plan["program"]["name"]),
        ("pods", f"{plan['nodes']} on {plan['instance_type'] or 'any node'}{each}"),
        ("processes", f"{plan['nodes'] * processes} ({processes} per pod)"),
        ("image", f"`{plan['image']}`"),
        ("checkpoints", claim),
        ("store", f"`{store}`" if store else "none: nothing is stored, and nothing is proven"),
        ("queue", plan["queue"] or "none"),
    )
    return "\n".join(["| plan | |", "|---|---|", *(f"| {name} | {_cell(text)} |" for name, text in rows), ""])


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
