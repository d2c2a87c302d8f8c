"""Find the cause of a failed training, who must act, and the fix.

Reads:      RUN: the records and logs of a run; --log: logs of any trainer; --job: the state, pods and logs
            of a job on a cluster; --github-run: annotations and logs of the jobs of a workflow run, with
            GITHUB_REPOSITORY and GITHUB_TOKEN; --build: phases and log of a CodeBuild build. - is stdin
Writes:     the class, the root error, the fix if one is known, whether a retry recovers, and the lines around
            the error, on stdout; --json prints {"class", "cause", "responsible", "fix", "retryable",
            "other_node", "evidence", "level", "root"}
Exit codes: 0 the answer was printed (it may be `unknown`); 2 wrong usage, or nothing of that name; 4 the
            cluster, GitHub or AWS refused or could not be reached
Example:    trainyard explain runs/20261120-214501-7c1f
"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.command import arguments, output
from trainyard.command.cluster_options import add_cluster_options, check_cluster_options
from trainyard.command.parser import add_option, add_run, script_parser
from trainyard.commands.job import open_jobs
from trainyard.config.registries import is_program_run
from trainyard.errors import ConfigError, DamagedFileError, ExitCode, ServiceError
from trainyard.gateways.aws_refusals import AwsAccount
from trainyard.gateways.github_api import github_from
from trainyard.gateways.images.codebuild import CodeBuild
from trainyard.jobs.follow import pod_logs
from trainyard.jobs.state.pod_failures import NO_ANSWER
from trainyard.jobs.state.state_machine import judge_job
from trainyard.program_training import is_alive
from trainyard.report.facts.next_commands import prove_command
from trainyard.report.facts.proof_record import read_proof
from trainyard.run.directory import RunDirectory
from trainyard.run.failure import next_command, read_failure, short_reason
from trainyard.run.identity import read_run
from trainyard.run.run_advice import require_run
from trainyard.watch.failure_classes import FailureClass
from trainyard.watch.failure_logs.failure_explanation import FailureFacts, LogExplanation, explain_logs
from trainyard.watch.failure_logs.log_text import events_of, log_of, read_end

if TYPE_CHECKING:
    from trainyard.watch.failure_logs.log_text import LogText

LAST_LINES = 2000
"""Number of lines that are read from the end of a pod's log."""


@dataclass(frozen=True)
class FailureEvidence:
    """The logs of something that failed, and what its records say."""

    logs: list["LogText"]
    facts: FailureFacts = field(default_factory=FailureFacts)
    recorded: LogExplanation | None = None
    """The cause on record, where it is certain."""
    command: str = ""
    """The command that resumes the run once the cause is fixed."""
    if_unknown: str = ""
    """The cause to state if the logs show none."""

    def explain(self) -> LogExplanation:
        """Return the cause on record, or else the cause that the logs show."""
        found = explain_logs(self.logs, facts=self.facts)
        if self.if_unknown and found.klass == "unknown":
            found = replace(found, cause=self.if_unknown, evidence=found.evidence[1:])
        if self.recorded is None:
            is_over = not self.command or found.klass == "finished"
            return found if is_over else replace(found, fix=f"{found.next_step}; then: {self.command}")
        fits = found.klass == self.recorded.klass
        return replace(
            self.recorded,
            responsible=self.recorded.responsible or (found.responsible if fits else ""),
            fix=self.recorded.fix or found.fix,
            evidence=(*self.recorded.evidence, *(found.evidence if fits else ())),
        )


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__, json="the explanation")
    places = parser.add_mutually_exclusive_group(required=True)
    add_option(places, "--log", "FILE", "logs; - is stdin", type=arguments.path, nargs="+")
    add_places(places)
    add_option(parser, "--exit-code", "N", "exit code of the process; -9 or 137 for SIGKILL", type=exit_code)
    add_job_options(parser)
    args = parser.parse_args(argv)
    check_cluster_options(parser, args)
    return args


def add_places(group: Any) -> None:
    """Add the options that name something that failed."""
    add_run(group)
    add_option(group, "--job", "JOB", "a job on the cluster", type=arguments.object_name)
    add_option(group, "--github-run", "ID", "a workflow run of GITHUB_REPOSITORY")
    add_option(group, "--build", "ID", "a build in CodeBuild")


def add_job_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say where a job or a build is."""
    namespace = arguments.object_name_if_given
    add_option(parser, "--namespace", "NAME", "of the job; default: the context's", type=namespace)
    add_cluster_options(parser, kind=True)


def exit_code(value: str) -> int:
    found = arguments.step(value.removeprefix("-"))
    if found is None or found > 255:
        raise arguments.refusal(value, "is not an exit code from -255 to 255")
    return -found if value.startswith("-") else found


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    found = failure_evidence(args).explain()
    output.print_result(found.record(), lambda *_: explanation_lines(found), as_json=args.json)
    return ExitCode.DONE


def explanation_lines(found: LogExplanation) -> list[str]:
    """Return the explanation as text: the class and cause first, then what to do, then the evidence."""
    who = f" ({found.responsible})" if found.responsible and found.fix else ""
    known = {"fact": " (from facts on record)", "log": " (from the log)"}.get(found.level, "")
    lines = [f"{found.klass}: {found.cause}", f"  fix{who}: {found.next_step}"]
    lines.append(f"  retry: {retry_words(found)}{known}")
    return [*lines, *(f"  {line}" for line in found.evidence if line != found.cause)]


def retry_words(found: LogExplanation) -> str:
    """Return in words whether a retry recovers from the failure."""
    if found.level == "waiting":
        return "not needed; it has not ended"
    done = "no; the training is done"
    ends = {"finished": done, "not-proven": done, "cancelled": "no; somebody stopped it"}
    words = {"yes": "from the newest good checkpoint", "unknown": "once, if steps were made"}
    words["other"] = "on another node; on the same one it would fail again"
    words["no"] = ends.get(found.klass, "no; it would fail again in the same way")
    return words[found.retry]


def failure_evidence(args: argparse.Namespace) -> FailureEvidence:
    """Return the logs and records that the options name. Raises ConfigError if there is nothing."""
    if args.run_dir is not None:
        return failed_run(args.run_dir)
    if args.job is not None:
        return failed_job(args)
    if args.github_run is not None:
        return FailureEvidence(list(github_logs(args.github_run)))
    if args.build is not None:
        return FailureEvidence(list(build_logs(args.build, args.region)))
    return FailureEvidence([read_log(path) for path in args.log], FailureFacts(args.exit_code))


def failed_run(path: Path) -> FailureEvidence:
    """Return the records and logs of a run. What our trainer recorded about its failure is certain."""
    directory = RunDirectory(path)
    require_run(path)
    run = read_run(directory.run_file)
    outcome = run.get("outcome")
    outcome = outcome if isinstance(outcome, Mapping) else {}
    if outcome.get("status") == "succeeded" and outcome.get("exit_code") == 0:
        return FailureEvidence([], FailureFacts(0), missing_proof(directory, run))
    logs = [read_log(file) for file in sorted(directory.logs.glob("*.log"))]
    if directory.events_file.is_file():
        logs.append(events_of(str(directory.events_file), text_of(directory.events_file)[0]))
    reason, command = short_reason(outcome), next_command(run, path)
    is_of_program = is_program_run(run)
    if reason and not is_of_program:
        logs.append(log_of(f"{directory.run_file}: outcome", str(outcome["reason"])))
    failure, code = read_failure(outcome), outcome.get("exit_code")
    code = code if isinstance(code, int) else None
    classes = {"storage": "disk-full", "interrupted": "cancelled"}
    name = classes.get(failure.kind, failure.kind) if failure is not None else ""
    is_certain = not is_of_program and name in set(FailureClass) - {"unknown", "user-code"}
    if outcome.get("program_exit_code") == 0 and code not in (0, None) and not outcome.get("exception"):
        # The program did not fail: it is red by what it did, which the proof states.
        unproven = missing_proof(directory, run)
        if unproven is not None:
            own = replace(unproven, klass=FailureClass.USER_CODE)
            return FailureEvidence(logs, FailureFacts(code), own)
    if failure is None or not is_certain:
        cause = ""
        with suppress(OSError):
            if not outcome and not is_alive(path):
                cause = "its trainer ended without an outcome: SIGKILL, no memory, power cut or lost machine"
        facts = facts_of_run(run, code)
        return FailureEvidence(logs, facts, command=command, if_unknown=cause)
    fix = f"{failure.fix}: {command}" if failure.fix else command
    who = "configuration" if failure.changes else ""
    evidence = (f"{directory.run_file}: {outcome.get('reason')}",)
    recorded = LogExplanation(FailureClass(name), evidence, False, reason, who, fix)
    return FailureEvidence(logs, FailureFacts(code), recorded)


def facts_of_run(run: Mapping[str, Any], code: int | None) -> FailureFacts:
    """Return the facts on record about the end of a program."""
    outcome = run.get("outcome") or {}
    exception, own, steps = (outcome.get(name) for name in ("exception", "program_exit_code", "steps"))
    failure = outcome.get("failure")
    known = failure if isinstance(failure, Mapping) else {}
    system, kills = known.get("system"), known.get("memory_kills")
    return FailureFacts(
        own if isinstance(own, int) and (own or not code) else code,
        **FailureFacts.of_exception(exception if isinstance(exception, Mapping) else {}),
        system=[str(line) for line in system] if isinstance(system, list) else (),
        memory_kills=kills if isinstance(kills, int) else None,
        steps=steps if isinstance(steps, int) else None,
    )


def missing_proof(directory: RunDirectory, run: Mapping[str, Any]) -> LogExplanation | None:
    """Return an explanation of the parts that the proof lacks; None if the run is proven."""
    proof = read_proof(directory, run)
    if proof is None or proof.is_of_another_state:
        why = "it ended with exit code 0, and is not proven yet"
        return LogExplanation(FailureClass.FINISHED, (why,), False, why, "", prove_command(directory.path))
    if not proof.failing:
        return None
    parts = [f"{part.name}: {part.evidence}" for part in proof.failing]
    step = proof.failing[0].next_step or "read report/index.html in the run directory"
    return LogExplanation(FailureClass.NOT_PROVEN, tuple(parts), False, parts[0], "", step, level="fact")


def failed_job(args: argparse.Namespace) -> FailureEvidence:
    """Return the state and the logs of a job on a cluster."""
    reader, namespace = open_jobs(args)
    job = reader.find_job(namespace, args.job, args.kind)
    state = judge_job(reader.observe(job))
    logs = []
    for log in pod_logs.container_logs(reader.raw_pods(job)):
        try:
            lines = pod_logs.read_log(reader.api, namespace, log, tail=LAST_LINES)
        except ServiceError as error:
            lines = [f"this log could not be read: {error}"]
        logs.append(replace(log_of(log.title, "\n".join(lines)), is_cut=len(lines) == LAST_LINES))
    if state.failure is None:
        if (waiting := state.waiting) is None:
            return FailureEvidence(logs)
        cause = f"it has not ended; it waits: {waiting.evidence}"
        evidence, fix = (waiting.evidence,), waiting.fix or "wait, or read its events: trainyard job events"
        return FailureEvidence(
            logs,
            recorded=LogExplanation(waiting.failure_class, evidence, False, cause, fix=fix, level="waiting"),
        )
    failure = state.failure
    logs.append(log_of(f"last lines of {failure.pod or job.name}", "\n".join(failure.lines)))
    if failure.failure_class in NO_ANSWER:
        return FailureEvidence(logs, FailureFacts(failure.exit_code, steps=1))
    recorded = LogExplanation(
        failure.failure_class, failure.evidence, failure.retryable, failure.cause or failure.evidence[0],
        failure.responsible, failure.fix, failure.other_node,
    )  # fmt: skip
    return FailureEvidence(logs, FailureFacts(failure.exit_code), recorded)


def github_logs(run: str) -> Iterator["LogText"]:
    """Return the annotations and the log of each job of a workflow run that did not succeed."""
    number = run.rstrip("/").partition("/actions/runs/")[2].partition("/")[0] or run
    if not number.isdigit():
        raise ConfigError(f"--github-run: {run!r} is not the number or the address of a workflow run")
    api = github_from()
    for job in api.pages(f"/actions/runs/{number}/jobs", "jobs", filter="latest"):
        if job.get("conclusion") in ("success", "skipped"):
            continue
        name = str(job.get("name"))
        texts = [str(each.get("message")) for each in api.pages(f"/check-runs/{job['id']}/annotations")]
        yield log_of(f"annotations of {name}", "\n".join(texts))
        try:
            text = api.text(f"/actions/jobs/{job['id']}/logs")
        except ServiceError as error:
            text = f"this log could not be downloaded: {error}"
        yield log_of(f"log of {name}", text)


def build_logs(build: str, region: str) -> Iterator["LogText"]:
    """Return the messages of the phases and the end of the log of a CodeBuild build."""
    aws = CodeBuild(AwsAccount(region))
    state = aws.state(build)
    phases = [f"{phase.name} {phase.status}: {phase.message}" for phase in state.phases if phase.message]
    yield log_of(f"phases of {build}", "\n".join([*phases, state.status]))
    yield replace(log_of(f"log of {build}", "\n".join(aws.log_tail(state, lines=LAST_LINES))), is_cut=True)


def read_log(path: Path) -> "LogText":
    """Return the log in a file. Raises ConfigError if it cannot be read."""
    text, is_cut = text_of(path)
    return replace(log_of(str(path), text), is_cut=is_cut)


def log_advice(path: Path) -> str:
    """Return what to name instead of `path`, which is not a log."""
    if (path / "run.json").is_file():
        return f"it is a run: --run-dir {path}"
    return f"name the logs in it: --log {path}/*.log" if path.is_dir() else "name the log of a run"


def text_of(path: Path) -> tuple[str, bool]:
    """Return the text of a log with invalid bytes replaced, and whether its beginning is left out."""
    if str(path) == "-":
        return sys.stdin.buffer.read().decode(errors="replace"), False
    try:
        return read_end(path)
    except (FileNotFoundError, DamagedFileError) as error:
        raise ConfigError(f"{error}; {log_advice(path)}") from None
