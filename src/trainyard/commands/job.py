"""Show and change training jobs on a cluster: state, cause of failure, logs and events.

`ls` shows the jobs that Trainyard sent. `status` shows the state of a job; --wait waits for its end, and
can be started again at any time. `logs` prints or saves the logs of all pods. `events` shows the events
of the cluster. `cancel` stops the pods, which may save first, and keeps the job. `delete` saves the logs and
removes the job and its objects. `resubmit` sends the job again under the next name. `retry` follows a job
that was sent with --auto-retry, and sends it again after failures that a retry can recover from. See
docs/runbooks/jobs.md. The job of that name which Trainyard made is meant; --kind names another.

Reads:      the kubeconfig, or AWS for --cluster; the API of the cluster
Writes:     with logs --save and with delete, files of logs; cancel, delete, resubmit, retry change the
            cluster; with status in GitHub Actions the outputs status, ended, exit_code, reason, the summary
Exit codes: 0 done; 1 the job failed, or no longer exists; 2 wrong usage or no such job; 4 the cluster cannot
            be reached or refuses; 5 not ended, or not deleted, in time; 75 it stopped with a good checkpoint
Example:    trainyard job status llama-2 --namespace team-a --wait --timeout 8h
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.command import arguments, output
from trainyard.command.cluster_options import add_cluster_options, check_cluster_options, cluster_target
from trainyard.command.parser import script_parser
from trainyard.errors import CheckFailedError, ConfigError, ExitCode
from trainyard.gateways.github import report_step
from trainyard.gateways.kubernetes.cluster_connection import open_api
from trainyard.jobs.follow.job_changes import JobEditor
from trainyard.jobs.follow.job_retries import RetryLoop
from trainyard.jobs.follow.job_view import follow_job
from trainyard.jobs.follow.pod_logs import container_logs, read_log, save_logs
from trainyard.jobs.job_reader import JobReader, event_records, list_entry
from trainyard.jobs.state.reading import name_of
from trainyard.jobs.state.state_machine import judge_job
from trainyard.report.jobs.job_actions import state_error, state_markdown, state_outputs
from trainyard.report.jobs.job_text import change_lines, event_lines, list_lines, progress_line, status_lines
from trainyard.run.untrusted_files import read_yaml

if TYPE_CHECKING:
    from trainyard.jobs.job_reader import FoundJob
    from trainyard.jobs.state.job_state import JobState

COMMANDS = ("ls", "status", "logs", "events", "cancel", "delete", "resubmit", "retry")
VALUES = (
    ("--namespace", arguments.object_name_if_given, "NAME", "default: the context's, else `default`"),
    ("--pod", arguments.object_name, "NAME", "with logs: only those of this pod"),
    ("--timeout", arguments.duration, "DURATION", "for --wait and retry (default: 24h) and delete (10m)"),
    ("--tail", arguments.positive, "N", "with logs: the last N lines of each container"),
    ("--save", arguments.path, "DIR", "with logs, delete: where logs go; delete: runs/jobs/NS/JOB/logs"),
)
SWITCHES = (
    ("--all-namespaces", "with ls: in all namespaces"),
    ("--wait", "with status: until the job has ended"),
    ("--previous", "with logs: also those of containers before their restart"),
    ("--no-logs", "with delete: do not save the logs"),
    ("--not-ours", "with delete and --kind: delete it although Trainyard did not make it"),
    ("--dry-run", "with cancel, delete, resubmit, retry: print the changes, make none"),
    ("--json", "print data as JSON"),
)
ONLY_FOR = {
    "--all-namespaces": ("ls",),
    "--wait": ("status",),
    **dict.fromkeys(("--tail", "--previous", "--pod"), ("logs",)),
    "--save": ("logs", "delete"),
    **dict.fromkeys(("--no-logs", "--not-ours"), ("delete",)),
    "--dry-run": ("cancel", "delete", "resubmit", "retry"),
}
"""Options and the commands that accept them."""


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__, only_for=ONLY_FOR)
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND", help="one of: " + ", ".join(COMMANDS))
    job = "the job's name; not for ls"
    parser.add_argument("job", nargs="?", type=arguments.object_name, metavar="JOB", help=job)
    for flag, kind, metavar, meaning in VALUES:
        parser.add_argument(flag, type=kind, metavar=metavar, help=meaning)
    for flag, meaning in SWITCHES:
        parser.add_argument(flag, action="store_true", help=meaning)
    add_cluster_options(parser, kind=True)
    args = parser.parse_args(argv)
    if (args.command == "ls") == (args.job is not None):
        parser.error("ls takes no job" if args.job else f"{args.command} needs the name of a job")
    check_cluster_options(parser, args)
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    reader, args.namespace = open_jobs(args)
    if args.command == "ls":
        return show_jobs(args, reader)
    commands = (show_status, show_logs, show_events, cancel, delete, resubmit, retry)
    job = reader.find_job(args.namespace, args.job, args.kind)
    return commands[COMMANDS.index(args.command) - 1](args, reader, job)


def open_jobs(args: argparse.Namespace) -> tuple[JobReader, str]:
    """Return the reader of the jobs of the cluster that the options name, and the namespace."""
    api = open_api(cluster_target(args), read=read_yaml)
    return JobReader(api), args.namespace or api.access.namespace or "default"


def show_jobs(args: argparse.Namespace, reader: JobReader) -> int:
    found = reader.jobs("" if args.all_namespaces else args.namespace)
    seen = [reader.observe_found(job) for job in found if args.kind in (None, job.kind.name)]
    records = [list_entry(judge_job(observed), observed) for observed in seen]
    return print_data(args, {"jobs": records}, lambda data, width: list_lines(data["jobs"], width=width))


def show_status(args: argparse.Namespace, reader: JobReader, job: "FoundJob") -> int:
    target = cluster_target(args)

    def show(state: "JobState") -> None:
        if not state.ended:  # the end is printed in full below
            output.announce("job", progress_line(state.record()))

    seconds = args.timeout or 24 * 3600.0
    follow = args.wait and follow_job(reader.api, **job.place, seconds=seconds, on_state=show)
    state = follow or judge_job(reader.observe(job))
    data, code = state.record(), state.exit_code
    print_data(args, data, lambda data, width: status_lines(data, width=width, target=target))
    report_step(
        state_outputs(data, exit_code=code),
        state_markdown(data, target),
        error=state_error(data, exit_code=code),
    )
    return code if state.ended or args.wait else ExitCode.DONE


def show_logs(args: argparse.Namespace, reader: JobReader, job: "FoundJob") -> int:
    pods = [p for p in reader.raw_pods(job) if args.pod in (None, p["metadata"]["name"])]
    if args.save:
        return save(reader, job, args.save, pods)
    for log in container_logs(pods, previous=args.previous):
        for line in read_log(reader.api, job.namespace, log, tail=args.tail):
            print(f"{log.title}  {line}")
    return ExitCode.DONE


def show_events(args: argparse.Namespace, reader: JobReader, job: "FoundJob") -> int:
    observed = reader.observe(job)
    records = event_records(reader.all_events(observed), now=observed.now)
    return print_data(args, {"events": records}, lambda data, width: event_lines(data["events"], width=width))


def cancel(args: argparse.Namespace, reader: JobReader, job: "FoundJob") -> int:
    return report_changes(args, JobEditor(reader, job).cancel(dry_run=args.dry_run))


def delete(args: argparse.Namespace, reader: JobReader, job: "FoundJob") -> int:
    if not (job.is_ours or args.not_ours):
        raise ConfigError(
            f"{job.kind.api_kind} {job.name} in {job.namespace} was not made by Trainyard. To delete it, add "
            "--not-ours. Nothing was deleted"
        )
    if not (args.no_logs or args.dry_run):
        folder = args.save or Path("runs", "jobs", job.namespace, job.name, "logs")
        if save(reader, job, folder, reader.raw_pods(job)):
            raise CheckFailedError("Nothing was deleted. Try again, or delete without the logs: --no-logs")
    seconds = args.timeout or 600.0
    return report_changes(args, JobEditor(reader, job).delete(seconds=seconds, dry_run=args.dry_run))


def resubmit(args: argparse.Namespace, reader: JobReader, job: "FoundJob") -> int:
    editor = JobEditor(reader, job)
    new = editor.resubmission()
    if not args.dry_run:
        editor.create(new)
    return report_changes(args, [f"create {body['kind'].lower()}s/{name_of(body)}" for body in new.all])


def retry(args: argparse.Namespace, reader: JobReader, job: "FoundJob") -> int:
    target = cluster_target(args)
    loop = RetryLoop(reader.api, output.announce, target=target)
    if args.dry_run:
        print(loop.preview(job))
        return ExitCode.DONE
    state = loop.follow_to_end(job.namespace, job.name, job.kind.name, args.timeout or 86400.0)
    data = state.record()
    if state.failure and not args.json:  # its reason was printed while it was followed
        del data["failure"]["evidence"][0]
    print_data(args, data, lambda data, width: status_lines(data, width=width, target=target))
    return state.exit_code


def report_changes(args: argparse.Namespace, changes: Sequence[str]) -> int:
    data = {"job": args.job, "namespace": args.namespace, "changed": not args.dry_run, "changes": [*changes]}
    return print_data(args, data, lambda data, _width: change_lines(data))


def save(reader: JobReader, job: "FoundJob", folder: Path, pods: Sequence[Mapping[str, Any]]) -> int:
    """Save the logs of these pods, and report which; the exit code says whether all were saved."""
    files, missing = save_logs(reader.api, job.namespace, pods, folder)
    for each in missing:
        output.announce("logs", f"not saved: {each}", "degraded")
    output.announce("logs", f"{len(files)} files in {folder}", "degraded" if missing else "ok")
    return ExitCode.NO if missing else ExitCode.DONE


def print_data(args: argparse.Namespace, data: Any, lines: Callable[[Any, int], list[str]]) -> int:
    output.print_result(data, lines, as_json=args.json)
    return ExitCode.DONE
