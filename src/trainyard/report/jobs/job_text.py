"""Show jobs on a terminal: the result, the cause, the last output, the next command, checkpoints, objects."""

import difflib
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainyard.config.yaml_reader import dump_documents
from trainyard.report.facts.quantities import format_age_ago, format_count
from trainyard.report.facts.table import wrap_table
from trainyard.run.sizes import format_size
from trainyard.run.suggested_commands import DEFAULT_CLUSTER, ClusterTarget

Json = Mapping[str, Any]
_COMMAND = "job"
_LABEL = 12
_MOST_LINES = 10
_NOT_STARTED = ("image-pull", "configuration", "quota", "unschedulable")
_PAST = {"create": "created", "delete": "deleted", "suspend": "suspended", "deactivate": "deactivated"}


def status_lines(data: Json, *, width: int, target: ClusterTarget = DEFAULT_CLUSTER) -> list[str]:
    """A job in full; `target` is the cluster of the next command."""
    lines = [f"{data['job']} ({data['kind']}) in {data['namespace']}: {data['status']}", ""]
    for label, text in _facts(data):
        first, *more = textwrap.wrap(text, max(30, width - _LABEL - 2), break_on_hyphens=False) or [""]
        lines += [f"  {label:<{_LABEL}}{first}", *(" " * (_LABEL + 2) + part for part in more)]
    last = (data.get("failure") or {}).get("lines") or []
    if last:
        lines += ["", "  last lines", *(f"    {line}" for line in last[-_MOST_LINES:])]
    command = next_job_command(data, target)
    return [*lines, "", f"  next        {command}"] if command else lines


def progress_line(data: Json) -> str:
    """One plain line about a job that is being followed."""
    restarts = f", {format_count(data['restarts'], 'restart')}" if data["restarts"] else ""
    alerts = "".join(f"; {alert}" for alert in data["alerts"])
    return f"{data['job']}: {data['status']} ({data['reason']}{restarts}{alerts})"


def next_job_command(data: Json, target: ClusterTarget = DEFAULT_CLUSTER) -> str:
    """The next command to run on the cluster `target`; empty where there is nothing to do."""
    words = _next_words(data)
    return target.command(_COMMAND, *words, namespace=data["namespace"]) if words else ""


def _next_words(data: Json) -> tuple[str, ...]:
    job = data["job"]
    if data["followed_by"]:
        return ("status", data["followed_by"])
    if data["holds_resources"] and data["alerts"]:  # pods that were created after its end
        return ("cancel", job)
    if data["status"] == "Failed" and data["auto_retry"] and data["failure"]["retryable"]:
        return ("retry", job)
    if data["status"] == "Failed" and data["failure"]["class"] == "cancelled":
        return ("resubmit", job)
    if data["status"] == "Failed":
        has_started = data["failure"]["class"] not in _NOT_STARTED or data["failure"]["exit_code"] is not None
        return ("logs", job, "--previous", "--tail", "50") if has_started else ("events", job)
    if data["holds_resources"]:
        return ("delete", job)
    if data["waiting"]:
        return ("events", job)
    if data["status"] == "Succeeded":
        return ("logs", job, "--tail", "20")
    return () if data["status"] == "Unknown" else ("status", job, "--wait")


def list_lines(jobs: Sequence[Json], *, width: int) -> list[str]:
    """A line for each job; below it why it does not run, once for neighbours that share the reason."""
    if not jobs:
        return [
            "There are no jobs of Trainyard here; without --all-namespaces only one namespace is searched."
        ]
    heads = ("namespace", "job", "kind", "status", "pods", "restarts", "age")
    rows = [
        (
            *(job[name] for name in heads[:4]),
            _pods(job["pods"]),
            str(job["restarts"]),
            job_age(job["age_seconds"]),
        )
        for job in jobs
    ]
    head, *lines = wrap_table(heads, rows, width=width)
    reasons = [_why_listed(job) for job in jobs]
    for number, reason in reversed(list(enumerate(reasons))):
        if reason and reasons[number + 1 : number + 2] != [reason]:
            lines[number + 1 : number + 1] = [
                f"    {line}" for line in textwrap.wrap(reason, max(30, width - 4))
            ]
    return [head, *lines]


def _why_listed(job: Json) -> str:
    """Return why a job does not run, and what is wrong with one that runs or has ended."""
    alerts = job["alerts"] if job["status"] in ("Running", "Succeeded", "Failed") else []
    return "; ".join([*([] if job["status"] in ("Running", "Succeeded") else [job["reason"]]), *alerts])


def event_lines(events: Sequence[Json], *, width: int) -> list[str]:
    """A line for each event, the newest last."""
    if not events:
        return ["There are no events; a cluster keeps them for an hour."]
    heads, rows = ("age", "type", "reason", "object", "message"), []
    for event in events:
        times = f" ({event['count']} times)" if event["count"] > 1 else ""
        middle = (event[name] for name in heads[1:4])
        rows.append((job_age(event["age_seconds"]), *middle, event["message"] + times))
    return wrap_table(heads, rows, width=width)


def change_lines(data: Json) -> list[str]:
    """The change in words: `deleted pytorchjobs/llama`, or `would delete pytorchjobs/llama`."""
    if not data["changed"]:
        return [f"would {change}" for change in data["changes"]]
    parts = (change.partition(" ") for change in data["changes"])
    return [f"{_PAST[verb]} {thing}" for verb, _, thing in parts]


def job_age(seconds: float | None) -> str:
    """`3 d`, `5 h`, `12 m` or `40 s`."""
    return "?" if seconds is None else format_age_ago(seconds).removesuffix(" ago")


def _facts(data: Json) -> Iterator[tuple[str, str]]:
    failure, waiting = data["failure"], data["waiting"]
    if failure:
        yield "class", failure["class"]
        for number, text in enumerate(failure["evidence"]):
            yield "" if number else "why", text
        if failure.get("fix"):
            who = f"{failure['responsible']}: " if failure["responsible"] else ""
            yield "fix", f"{who}{failure['fix']}"
        if place := failure_place(failure):
            yield "first", ", ".join(place)
    else:
        yield "why", data["reason"]
    if data["proof"]:
        what = "ran, not proven" if data["status"] == "Succeeded" else "the run will not be proven"
        yield "proof", f"{data['proof']} ({what}); job deploy --manifest FILE --prove stores and proves a run"
    for alert in data["alerts"]:
        yield "alert", alert
    if waiting:
        yield "waits for", f"{waiting['class']}"
        if waiting.get("fix"):
            yield "fix", waiting["fix"]
    holding = ", and they still hold what they requested" if data["holds_resources"] else ""
    yield "pods", _pods(data["pods"]) + holding
    if data["restarts"] or data["retries"]:
        restarts = f"{data['restarts']} by the operator or its nodes"
        yield "restarts", f"{restarts}, {data['retries']} submitted again"
    if data["auto_retry"]:
        yield "retries", f"{data['retries']} made, at most {data['auto_retry']} after failures"
    if data["followed_by"]:
        yield "followed by", data["followed_by"]


def failure_place(failure: Json) -> list[str]:
    """`rank 3`, `exit code 1`, `pod llama-0`, `node n1`, as far as they are known."""
    names = {"rank": "rank", "exit_code": "exit code", "pod": "pod", "node": "node"}
    return [f"{name} {failure[key]}" for key, name in names.items() if failure[key] not in (None, "")]


def _pods(pods: Json) -> str:
    wanted = pods["wanted"] if pods["wanted"] is not None else pods["present"]
    parts = [f"{pods['running']} of {wanted} running"]
    parts += [f"{pods[name]} {name}" for name in ("succeeded", "failed") if pods[name]]
    return ", ".join(parts)


def checkpoint_lines(found: Sequence[Json], *, where: str, width: int) -> list[str]:
    """A line for each checkpoint, in the order of runs and steps."""
    if not found:
        return [f"There are no checkpoints in {where}."]
    heads = ("checkpoint", "format", "step", "size", "files", "verdict", "why")
    rows = []
    for each in found:
        step = "" if each["step"] is None else f"{each['step']:,}"
        figures = (step, format_size(each["bytes"]), str(each["files"]))
        rows.append((each["path"], each["format"], *figures, each["verdict"], each["why"]))
    return wrap_table(heads, rows, width=width)


def copy_line(data: Json) -> str:
    """The result of a copy in one sentence."""
    kept = f", {data['kept_files']} of {data['files']} files were there already" if data["kept_files"] else ""
    cuts = f", after {data['cuts']} lost connections" if data["cuts"] else ""
    files = f"{data['files']} files, {format_size(data['bytes'])}"
    return f"{data['path']}: {files}, SHA-256 equal on both ends{kept}{cuts}"


def manifest_diff(written: Json, sent: Json, others: Sequence[Json]) -> list[str]:
    """Return the lines in which the job that is sent differs from the one that was written."""
    before = dump_documents([written]) if written.get("kind") == sent.get("kind") else ""
    name = f"{sent['kind']} {sent['metadata']['name']}"
    texts = before.splitlines(), dump_documents([sent]).splitlines()
    lines = [*difflib.unified_diff(*texts, f"{name}, as written", f"{name}, as sent", lineterm="")]
    names = ", ".join(f"{body['kind']} {(body.get('metadata') or {}).get('name')}" for body in others)
    return [*lines, *([f"# applied unchanged before it: {names}"] if names else [])]
