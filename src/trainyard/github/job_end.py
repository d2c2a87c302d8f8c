"""Find the end of a workflow run that no job has reported, and its cause, from the results of its jobs.

    needs + GitHub's records of the jobs ──> None (each end was reported), or the cause, the next command

GitHub ends a job that found no runner, reached its time limit or fell out of a full queue as `cancelled`,
like a job that a person cancelled; only its annotations show the cause. They are quoted, not interpreted. A
job that reports its own end sets the output `reported` to the attempt. This module sends nothing.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Json = Mapping[str, Any]
JobRecords = Callable[[str], Json]
"""Title of a job -> the job as GitHub's API answers, with its `annotations`; empty where it is not known."""
BY_PERSON = re.compile(r"run was cancell?ed by @(?P<what>\S+?)\.?$", re.I)
_GENERAL = re.compile(r"The operation was canceled\.|Process completed with exit code \d+\.")
"""Annotations of GitHub that name no cause: each follows another one."""
_NOT_ALLOWED = re.compile(
    r'(?P<kind>Branch|Tag) "(?P<ref>[^"]+)" is not allowed to deploy to (?P<environment>\S+)'
)
MOST_ATTEMPTS = 50
"""Attempts of one run that GitHub allows: https://docs.github.com/en/actions/reference/limits"""
_LOG = "gh run view {run} --log-failed"
_AGAIN = "{again}"
_MOST_LETTERS = 400  # of a quoted sentence


@dataclass(frozen=True)
class JobTexts:
    """The report about a job that did not succeed."""

    title: str
    """Its name in GitHub's lists."""
    after: str
    """The effect of its end on the run."""
    not_started: str = ""
    """Replaces `after` for a job that never had a machine; empty if `after` is right for it too."""
    fix: str = _LOG
    """The next command after a failure for which GitHub names no cause."""
    continued_by: str = ""
    """The job that continues the run; if that succeeds, this job's end is not reported."""


@dataclass(frozen=True)
class JobEnd:
    """The end of a run that was not reported yet."""

    reason: str
    next_step: str
    by_person: bool
    """A person cancelled the run."""


TRAIN_JOB = "Train and prove"
_NOTHING = "nothing was started"
_RUNNER = "checkpoints that it wrote and did not store stay on the runner"
TRAINING = {
    "plan": JobTexts("Plan", _NOTHING),
    "train": JobTexts(
        TRAIN_JOB, _RUNNER, "nothing was trained", f"{_LOG}, then {_AGAIN}", continued_by="continue"
    ),
    "continue": JobTexts("Continue or notify", "the next segment may be missing", fix=_AGAIN),
}
"""The jobs of `train.yml`, in their order."""


def unreported_end(needs: Json, *, run: str, attempt: str, records: JobRecords) -> JobEnd | None:
    """Return the end that has to be reported; None if all is well or each job reported its own end.

    `needs` is GitHub's context of that name: job -> result and outputs. A job that was skipped because
    another one failed or was cancelled is not reported.
    """
    table = {name: texts for name, texts in TRAINING.items() if name in needs}
    reasons, fixes, by_person = [], [], False
    for name, texts in table.items():
        if _result(needs, name) == "skipped" and _is_due(needs, attempt, name):
            effect = texts.not_started or texts.after
            reasons.append(f"the run was cancelled before the job {texts.title} started: {effect}")
            fixes.append(_AGAIN)
        elif _has_bad_end(needs, name, texts) and not is_reported(needs, name, attempt):
            record, is_cancelled = records(texts.title), _result(needs, name) == "cancelled"
            cause, has_run = quoted_cause(record), bool(record.get("runner_name") or not record)
            own = "" if is_cancelled else str(outputs_of(needs, name).get("reason") or "")
            ended = "was cancelled" if is_cancelled else "failed"
            effect = texts.after if has_run else texts.not_started or texts.after
            reason = f"the job {texts.title} {ended} ({cause or 'GitHub names no cause'}): {effect}"
            reasons.append(own or reason)
            fix = _AGAIN if is_cancelled else texts.fix
            fixes.append(fix if has_run or own or not cause else _fix_of(cause))
            person = BY_PERSON.search(cause) if is_cancelled else None
            by_person |= person is not None and not person["what"].endswith("[bot]")
    if not reasons:
        return None
    fix = fixes[0].format(run=run, again=rerun_command(run, records(TRAINING["plan"].title)))
    return JobEnd("; ".join(reasons), next_command(fix, attempt), by_person)


def rerun_command(run: str, plan: Json) -> str:
    """Return the command that starts a run again from its job `Plan`; all of its jobs if that is not known.

    GitHub runs a job again together with those that need it. `--failed` would leave out the job that waits
    for a runner, which succeeded, and would keep a plan whose variables may be what was wrong.
    """
    return f"gh run rerun --job {plan['id']}" if "id" in plan else f"gh run rerun {run}"


def job_of_call(jobs: Iterable[Json], title: str, runner: str) -> Json:
    """Return the job `title` of the call of train.yml that has the job on `runner`; empty without one.

    GitHub names a job of a called workflow `CALLER / JOB`, and several calls in one run each have such a job.
    """
    known = {str(each["name"]): each for each in jobs}
    here = {"runner_name": runner, "status": "in_progress"}.items()
    callers = [name.rpartition(" / ")[0] for name, each in known.items() if runner and here <= each.items()]
    named = [name for name in known if name.rpartition(" / ")[2] == title]
    own = f"{callers[0]} / {title}" if callers and callers[0] else next(iter(named), "")
    return known.get(own, {})


def quoted_cause(record: Json) -> str:
    """Return GitHub's own sentence about a job's end, without its last full stop; empty if it has none.

    It is the first annotation of the level `failure` that names a cause: warnings do not end a job.
    """
    for note in record.get("annotations") or ():
        message = " ".join(str(note.get("message") or "").split())
        if note.get("annotation_level") == "failure" and message and not _GENERAL.fullmatch(message):
            title = str(note.get("title") or "")
            return (f"{title}: {message}" if title else message)[:_MOST_LETTERS].rstrip(".")
    return ""


def _fix_of(cause: str) -> str:
    """Return what to do about a job that GitHub did not give to a machine, for a cause that it names."""
    found = _NOT_ALLOWED.search(cause)
    if found is None:
        return _AGAIN if BY_PERSON.search(cause) else f"settle what GitHub says, then {_AGAIN}"
    # The tags of lineages share a pattern, so that it is allowed once.
    pattern = re.sub(r"^(trainyard-lineage-).*", r"\1*", found["ref"])
    path = f"repos/{{{{owner}}}}/{{{{repo}}}}/environments/{found['environment']}/deployment-branch-policies"
    kind = found["kind"].lower()
    return f"gh api --method POST {path} -f name='{pattern}' -f type={kind}, then {_AGAIN}"


def next_command(fix: str, attempt: str) -> str:
    """Return the command, or the advice to start a new run if GitHub allows no further attempt."""
    if "gh run rerun" not in fix or not attempt.isdigit() or int(attempt) < MOST_ATTEMPTS:
        return fix
    return f"start a new run: gh workflow run ...; GitHub allows {MOST_ATTEMPTS} attempts of a run"


def is_reported(needs: Json, job: str, attempt: str) -> bool:
    """Return whether a job reported its own end in this attempt; GitHub may pass an earlier one's outputs."""
    return outputs_of(needs, job).get("reported") == attempt


def _has_bad_end(needs: Json, name: str, texts: JobTexts) -> bool:
    is_continued = bool(texts.continued_by) and _result(needs, texts.continued_by) == "success"
    return _result(needs, name) in ("failure", "cancelled") and not is_continued


def _is_due(needs: Json, attempt: str, name: str) -> bool:
    """Return whether a job should have run, so that a skip has to be reported."""
    if name == "continue":  # stopped early with a checkpoint, or an outage, and not by a cancellation
        return outputs_of(needs, "train").get("continues") == attempt and _result(needs, "train") in (
            "success",
            "failure",
        )
    return name == "train" and outputs_of(needs, "plan").get("trains") == "true"


def _result(needs: Json, name: str) -> str:
    return str((needs.get(name) or {}).get("result") or "skipped")


def outputs_of(needs: Json, name: str) -> Json:
    """Return the outputs of a job, with those that it packs as JSON into its output `end`."""
    outputs: Json = (needs.get(name) or {}).get("outputs") or {}
    return {**outputs, **_object(outputs.get("end"))}


def _object(text: Any) -> Json:
    try:
        found = json.loads(text or "{}")
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {}
