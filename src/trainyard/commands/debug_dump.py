"""Write one archive about a failed run or job, to send to whoever helps.

It has the explanation of the failure, the records and the plan, the ends of the logs, the versions of all
packages, the GPUs, the environment without secrets, and for a job its state, events and pods. A line that
holds a secret is left out, and the archive says so.

Reads:      the run's directory, or the job, its pods, events and logs on the cluster; this machine
Writes:     one .tar.gz file; its path is printed
Exit codes: 0 done; 2 wrong usage, or no run or job of that name; 4 the cluster cannot be reached or refuses
Example:    trainyard debug-dump runs/20261120-214501-7c1f
"""

import argparse
import io
import json
import os
import platform
import sys
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trainyard.command import arguments, output
from trainyard.command.cluster_options import check_cluster_options
from trainyard.command.parser import script_parser
from trainyard.errors import ConfigError, ExitCode

LAST_BYTES = 1 << 20
"""Number of bytes of the end of each file."""
RECORDS = ("run.json", "config.yaml", "metrics.jsonl", "events.jsonl", "proof.json")


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    from trainyard.commands.explain_failure import add_job_options

    parser = script_parser(__doc__)
    parser.add_argument("name", metavar="RUN|JOB", help="the directory of a run, or the name of a job")
    parser.add_argument("--output", type=arguments.path, metavar="FILE", help="default: debug-NAME.tar.gz")
    add_job_options(parser)
    args = parser.parse_args(argv)
    check_cluster_options(parser, args)
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    output.configure_logging(args.log_level)
    run = Path(args.name)
    if run.is_dir():
        texts = {**run_texts(run), **machine_texts()}
    elif os.sep in args.name:
        raise ConfigError(f"{args.name} is not a directory; name a run's directory, or a job on the cluster")
    else:
        args.job = arguments.object_name(args.name)
        texts = {**job_texts(args), **machine_texts()}
    name = run.resolve().name
    file = args.output or Path(f"debug-{name}.tar.gz")
    write_archive(file, f"debug-{name}", texts)
    print(file)
    return ExitCode.DONE


def run_texts(run: Path) -> dict[str, str]:
    """Return the explanation, the records and the ends of the logs of a run, by file name."""
    from trainyard.commands.explain_failure import explanation_lines, failed_run

    found = failed_run(run).explain()
    texts = {
        "explanation.txt": "\n".join(explanation_lines(found)),
        "explanation.json": as_json(found.record()),
    }
    logs = (path for path in sorted(run.glob("logs/*")) if path.is_file())
    for path in (*(run / name for name in RECORDS), *sorted(run.glob("report/*.json")), *logs):
        if path.is_file():
            texts[str(path.relative_to(run))] = end_of(path)
    return texts


def job_texts(args: argparse.Namespace) -> dict[str, str]:
    """Return the explanation, the state, the events, the pods and the ends of the logs of a job."""
    from trainyard.commands.explain_failure import explanation_lines, failed_job, job_reader
    from trainyard.jobs.job_reader import event_records
    from trainyard.jobs.state.state_machine import judge_job

    thing = failed_job(args)
    found = thing.explain()
    reader, namespace = job_reader(args)
    job = reader.find_job(namespace, args.job)
    observed = reader.observe(job)
    texts = {
        "explanation.txt": "\n".join(explanation_lines(found)),
        "explanation.json": as_json(found.record()),
        "state.json": as_json(judge_job(observed).record()),
        "events.json": as_json(event_records(reader.all_events(observed), now=observed.now)),
        "job.json": as_json(observed.job),
        "pods.json": as_json(list(reader.raw_pods(job))),
    }
    return texts | {f"logs/{log.name.replace('/', '.')}.log": "\n".join(log.lines) for log in thing.logs}


def machine_texts() -> dict[str, str]:
    """Return the versions, the GPUs and the environment of this machine, without secrets."""
    from trainyard import __version__
    from trainyard.gateways.local_machine import installed_versions
    from trainyard.gateways.nvidia import query_gpus
    from trainyard.plan.environment.secret_forms import secret_kind

    versions = {"trainyard": __version__, "python": sys.version, "platform": platform.platform()}
    environment = {
        name: value if secret_kind(name, value) is None else "(a secret, left out)"
        for name, value in sorted(os.environ.items())
    }
    return {
        "machine/versions.json": as_json(versions | dict(sorted(installed_versions().items()))),
        "machine/gpus.json": as_json(asdict(query_gpus())),
        "machine/environment.json": as_json(environment),
    }


def end_of(path: Path) -> str:
    """Return the end of a file, from the beginning of a line."""
    with path.open("rb") as file:
        start = max(0, file.seek(0, os.SEEK_END) - LAST_BYTES)
        file.seek(start)
        text = file.read().decode(errors="replace")
    return text if start == 0 else f"(the first {start:,} bytes are left out)\n{text.partition(chr(10))[2]}"


def as_json(data: Any) -> str:
    return json.dumps(data, indent=2, sort_keys=True, default=str)


def without_secrets(text: str) -> str:
    """Return the text with each line that holds a secret replaced."""
    from trainyard.plan.environment.secret_forms import secret_value_kind

    return "\n".join(
        line if secret_value_kind(line.encode()) is None else "(a line with a secret, left out)"
        for line in text.split("\n")
    )


def write_archive(file: Path, folder: str, texts: Mapping[str, str]) -> None:
    """Write the texts as files of one folder into a .tar.gz file."""
    with tarfile.open(file, "w:gz") as archive:
        for member, content in members(folder, texts):
            archive.addfile(member, io.BytesIO(content))


def members(folder: str, texts: Mapping[str, str]) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    for name, text in texts.items():
        content = without_secrets(text).encode()
        member = tarfile.TarInfo(f"{folder}/{name}")
        member.size = len(content)
        yield member, content
