"""Write one archive about a failed run or job, to send to whoever helps.

It has the explanation of the failure, the records and the plan, the ends of the logs, the versions of all
packages, the GPUs, and for a job its state, events, pods and nodes. Environment variables that set up
training are written with their values (VARIABLES), all others, also in manifests, as names only. Secrets
are replaced as in a run's records (`config.secret_filter`).

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard import __version__
from trainyard.cluster.server_side_apply import path_part
from trainyard.command import arguments
from trainyard.command.cluster_options import check_cluster_options
from trainyard.command.parser import add_option, script_parser
from trainyard.commands.explain import (
    add_job_options,
    explanation_lines,
    failed_job,
    failed_run,
)
from trainyard.commands.job import open_jobs
from trainyard.config.secret_filter import SecretFilter
from trainyard.config.secret_forms import is_secret_name
from trainyard.errors import ConfigError, ExitCode, ServiceError
from trainyard.gateways.local_machine import installed_versions
from trainyard.gateways.nvidia import query_gpus
from trainyard.jobs.job_reader import event_records
from trainyard.jobs.state.state_machine import judge_job
from trainyard.run.run_advice import advice

if TYPE_CHECKING:
    from trainyard.gateways.kubernetes.api import Api

LAST_BYTES = 1 << 20
"""Number of bytes that are kept from the end of each file."""
VARIABLES = (
    *("CUDA_", "NVIDIA_", "NCCL_", "OFI_NCCL_", "FI_", "UCX_", "TORCH_", "PYTORCH_", "OMP_", "MKL_", "KMP_"),
    *("TRAINYARD_DEVICE", "TRAINYARD_NODE", "TRAINYARD_LOG", "MASTER_ADDR", "MASTER_PORT", "LD_LIBRARY_PATH"),
    *("HF_HUB_OFFLINE", "HF_HOME", "HF_ENDPOINT", "PYTHONPATH", "PYTHONUNBUFFERED", "PATH", "LANG", "TZ"),
    *("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK"),
    *("AWS_REGION", "AWS_DEFAULT_REGION"),
    *("CI", "GITHUB_ACTIONS", "GITHUB_RUN_ID", "GITHUB_RUN_ATTEMPT", "GITHUB_SHA", "GITHUB_WORKFLOW"),
    *("RUNNER_OS", "RUNNER_ARCH", "RUNNER_VERSION"),
)
"""Variables whose values are written; a name that ends with _ stands for all that begin with it."""
LEFT_OUT = "(left out)"
RECORDS = ("run.json", "config.yaml", "metrics.jsonl", "events.jsonl", "proof.json")


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument("name", metavar="RUN|JOB", help="the directory of a run, or the name of a job")
    add_option(parser, "--output", "FILE", "default: debug-NAME.tar.gz", type=arguments.path)
    add_job_options(parser)
    args = parser.parse_args(argv)
    check_cluster_options(parser, args)
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    run = arguments.run_directory(args.name)
    if run.is_dir() or run.exists() or os.sep in args.name:
        texts = {**run_texts(run), **machine_texts()}
    else:
        texts = {**named_job_texts(args), **machine_texts()}
    name = run.resolve().name
    file = args.output or Path(f"debug-{name}.tar.gz")
    write_archive(file, f"debug-{name}", texts)
    print(file)
    return ExitCode.DONE


def run_texts(run: Path) -> dict[str, str]:
    """Return the explanation, the records and the ends of the logs of a run, by file name."""
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


def named_job_texts(args: argparse.Namespace) -> dict[str, str]:
    """Return the texts of the named job. Raises ConfigError if the name belongs to no run and no job."""
    try:
        args.job = arguments.object_name(args.name)
        return job_texts(args)
    except (argparse.ArgumentTypeError, ConfigError) as error:
        here = f"{args.name} is neither a run's directory nor a job that was found."
        raise ConfigError(f"{here}\nAs a run: {advice(Path(args.name))}.\nAs a job: {error}") from None


def job_texts(args: argparse.Namespace) -> dict[str, str]:
    """Return the explanation, the state, the events, the pods and the ends of the logs of a job."""
    failure = failed_job(args)
    found = failure.explain()
    reader, namespace = open_jobs(args)
    job = reader.find_job(namespace, args.job, args.kind)
    observed = reader.observe(job)
    pods = reader.raw_pods(job)
    texts = {
        "explanation.txt": "\n".join(explanation_lines(found)),
        "explanation.json": as_json(found.record()),
        "status.json": as_json(judge_job(observed).record()),
        "events.json": json_or_refusal(lambda: event_records(reader.all_events(observed), now=observed.now)),
        "job.json": as_json(without_values(observed.job)),
        "pods.json": as_json(without_values(list(pods))),
        "cluster.json": as_json(cluster_facts(reader.api, pods)),
    }
    return texts | {f"logs/{log.name.replace('/', '.')}.log": "\n".join(log.lines) for log in failure.logs}


def json_or_refusal(read: Callable[[], Any]) -> str:
    """Return the result of `read` as JSON, or the reason why the cluster refuses it."""
    try:
        return as_json(read())
    except ServiceError as error:
        return as_json({"refused": str(error)})


def cluster_facts(api: "Api", pods: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the version of the cluster, and the facts about the nodes of the pods."""
    names = {str(name) for pod in pods if (name := (pod.get("spec") or {}).get("nodeName"))}
    paths = {"version": "/version"} | {name: f"/api/v1/nodes/{path_part(name)}" for name in sorted(names)}
    found = {name: json.loads(json_or_refusal(partial(api.get, path))) for name, path in paths.items()}
    version = found.pop("version")
    return {"version": version, "nodes": {name: node_facts(raw) for name, raw in found.items()}}


def node_facts(raw: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return labels, taints, conditions, sizes and versions of a node, without its addresses."""
    if raw is None or "refused" in raw:
        return raw or {"refused": "this node no longer exists"}
    spec, status = raw.get("spec") or {}, raw.get("status") or {}
    kept = {name: status.get(name) for name in ("conditions", "allocatable", "capacity", "nodeInfo")}
    return {"labels": (raw.get("metadata") or {}).get("labels"), "taints": spec.get("taints"), **kept}


def without_values(value: Any) -> Any:
    """Return an object of Kubernetes without the values of variables and without copies of its manifest."""
    if isinstance(value, list):
        return [without_values(each) for each in value]
    if not isinstance(value, Mapping):
        return value
    if isinstance(name := value.get("name"), str) and isinstance(value.get("value"), str):
        return {**value, "value": value["value"] if is_shown(name) else LEFT_OUT}
    copies = ("last-applied-configuration", "managedFields")
    return {key: without_values(each) for key, each in value.items() if not str(key).endswith(copies)}


def is_shown(name: str) -> bool:
    """Return whether the value of the variable `name` may be written."""
    listed = any(name.startswith(each) if each.endswith("_") else name == each for each in VARIABLES)
    return listed and not is_secret_name(name)


def machine_texts() -> dict[str, str]:
    """Return the versions, the GPUs and the environment of this machine, without secrets."""
    versions = {"trainyard": __version__, "python": sys.version, "platform": platform.platform()}
    environment = {name: value if is_shown(name) else LEFT_OUT for name, value in sorted(os.environ.items())}
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


def write_archive(file: Path, folder: str, texts: Mapping[str, str]) -> None:
    """Write the texts, without secrets, as files of one folder into a .tar.gz file."""
    secrets = SecretFilter.of({"environment": dict(os.environ)})
    with tarfile.open(file, "w:gz") as archive:
        for name, text in texts.items():
            content = secrets.mask_bytes(text.encode())
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
