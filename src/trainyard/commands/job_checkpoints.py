"""List, find and copy checkpoints of any trainer on a cluster, without kubectl; create the volume for them.

`list` shows all checkpoints of a job, claim or pod with a verdict; `find` shows the newest complete one of
each run. `copy` copies one to a folder and hashes each file on both ends; after an interruption the same
command continues. A volume that no pod uses is read by a small pod, which is removed afterwards.
`create-volume` makes a claim. Known formats: ours, verl, Megatron-LM, NeMo, DeepSpeed, DCP, Hugging Face.

Reads:      the kubeconfig, or AWS for --cluster; the API of the cluster
Writes:     copy: --to; create-volume: the claim; list, find, copy: a temporary pod, if none mounts the claim
Exit codes: 0 done; 1 no complete checkpoint, or a damaged one; 2 wrong usage, or no such place;
            4 the cluster refuses or cannot be reached; 5 the small pod did not start in time
Example:    trainyard job checkpoints copy --job llama --step newest --to back
"""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trainyard.cluster.server_side_apply import apply_all, path_part
from trainyard.cluster.volumes import claim_body, require_same_claim, require_size, volume_of
from trainyard.command import arguments, output, terminal
from trainyard.command.cluster_options import add_cluster_options, check_cluster_options
from trainyard.command.parser import add_option, script_parser
from trainyard.commands.job import open_jobs
from trainyard.config.yaml_reader import dump_documents
from trainyard.errors import CheckpointError, ConfigError, ExitCode
from trainyard.gateways.kubernetes.api import Api
from trainyard.jobs.job_submission import refusals
from trainyard.jobs.volumes.checkpoint_copy import copy_to_folder
from trainyard.jobs.volumes.checkpoint_search import open_found_folder
from trainyard.programs.checkpoints.checkpoint_formats import (
    choose_checkpoint,
    find_checkpoints,
    newest_of_each_run,
)
from trainyard.report.jobs.job_text import checkpoint_lines, copy_line
from trainyard.report.terminal.phase import PhaseDisplay

if TYPE_CHECKING:
    from trainyard.jobs.volumes.volume_source import VolumeSource
    from trainyard.programs.checkpoints.checkpoint_formats import FoundCheckpoint

COMMANDS = ("create-volume", "find", "list", "copy")
READ_COMMANDS = ("find", "list", "copy")
PLACES = (
    ("--job", "JOB", "a job sent by trainyard job deploy: its claim and folder are known"),
    ("--claim", "NAME", "a PersistentVolumeClaim; with create-volume: its name"),
    ("--pod", "NAME", "a running pod, with --path"),
)
TEXTS = (
    ("--path", "FOLDER", "the folder to search: absolute with --pod, else relative to the root of the claim"),
    ("--image", "URI", "image of the small pod, with Python; default: that of --job"),
    ("--checkpoint", "PATH", "with copy: the path that list shows"),
    ("--storage-class", "NAME", "with create-volume, such as fsx"),
    ("--size", "SIZE", "with create-volume, such as 1200Gi"),
)
ONLY_FOR = {
    **dict.fromkeys(("--job", "--kind", "--pod", "--path", "--image"), READ_COMMANDS),
    **dict.fromkeys(("--checkpoint", "--step", "--to"), ("copy",)),
    **dict.fromkeys(("--storage-class", "--size"), ("create-volume",)),
    "--dry-run": ("copy", "create-volume"),
}
"""Options and the commands that accept them."""
NEEDED = {"create-volume": ("claim", "size", "storage_class"), "copy": ("to",)}


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(
        __doc__, only_for=ONLY_FOR, dry_run="with copy, create-volume: change nothing", json="data"
    )
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND", help="one of: " + ", ".join(COMMANDS))
    where = parser.add_mutually_exclusive_group(required=True)
    name = arguments.object_name_if_given
    for flag, metavar, meaning in PLACES:
        where.add_argument(flag, type=name, default="", metavar=metavar, help=meaning)
    add_option(parser, "--namespace", "NAME", "default: the context's, else `default`", type=name, default="")
    for flag, metavar, meaning in TEXTS:
        parser.add_argument(flag, default="", metavar=metavar, help=meaning)
    add_option(parser, "--step", "S|newest", "with copy: a step, or newest; default: newest", default="")
    add_option(parser, "--to", "DIR", "with copy: a folder of this machine", type=arguments.path)
    add_option(parser, "--python", "NAME", "Python in the pod; default: python3", default="python3")
    start = "time limit for the start of the small pod; default: 5m"
    add_option(parser, "--timeout", "DURATION", start, type=arguments.duration, default="5m")
    add_cluster_options(parser, kind=True)
    args = parser.parse_args(argv)
    check(parser, args)
    return args


def check(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Refuse options that do not go together."""
    for name in NEEDED.get(args.command, ()):
        if not getattr(args, name):
            parser.error(f"{args.command} needs --{name.replace('_', '-')}")
    if args.pod and not args.path.startswith("/"):
        parser.error("--pod needs --path with an absolute folder in the pod")
    if args.step not in ("", "newest") and arguments.step(args.step) is None:
        parser.error(f"--step {arguments.quote(args.step)} is neither a step nor newest")
    if args.to and args.to.parts[0].endswith(":"):  # a path has one slash of a URL's two
        parser.error(
            "--to names a folder; `trainyard store sync --checkpoint` stores a checkpoint from there"
        )
    check_cluster_options(parser, args)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    if args.command == "copy" and args.to.exists() and not args.to.is_dir():
        raise ConfigError(f"--to {args.to} is a file; name a folder")
    reader, args.namespace = open_jobs(args)
    api = reader.api
    if args.command == "create-volume":
        return create_volume(args, api)
    names = ("pod", "claim", "job", "kind", "path", "image", "python")
    how = {name: getattr(args, name) for name in names}
    with open_found_folder(api, args.namespace, **how, seconds=args.timeout) as source:
        do = copy if args.command == "copy" else show
        return do(args, source, find_checkpoints(source.listing()))


def show(args: argparse.Namespace, source: "VolumeSource", found: "list[FoundCheckpoint]") -> int:
    shown = newest_of_each_run(found) if args.command == "find" else found
    records = [each.record() for each in shown]
    output.print_result(
        {"place": str(source), "checkpoints": records},
        lambda data, width: checkpoint_lines(records, where=data["place"], width=width),
        as_json=args.json,
    )
    return ExitCode.NO if args.command == "find" and not shown else ExitCode.DONE


def copy(args: argparse.Namespace, source: "VolumeSource", found: "list[FoundCheckpoint]") -> int:
    checkpoint = choose_checkpoint(found, args.checkpoint, arguments.step(args.step))
    data: dict[str, Any] = {**checkpoint.record(), "from": str(source), "to": str(args.to)}
    if args.dry_run:
        data |= {"copied": False}
        line = f"would copy {checkpoint.path}: {len(checkpoint.files)} files, {checkpoint.size:,} bytes"
    else:
        display = PhaseDisplay("copy")
        display.begin(checkpoint.path, checkpoint.size)
        with terminal.show_live(display):
            copied = copy_to_folder(source, checkpoint, args.to, progress=display.advance)
        data |= {"copied": True, "fetched_bytes": copied.fetched_bytes, "kept_files": copied.kept_files}
        data |= {"cuts": copied.cuts, "sha256": copied.sha256}
        line = copy_line(data)
        output.announce("copied", line, "ok")
    if args.json:
        output.print_json(data)
    elif args.dry_run:
        print(line)
    return ExitCode.DONE


def create_volume(args: argparse.Namespace, api: Api) -> int:
    """Create the claim, unless it exists with these values or the API server would refuse it."""
    size = require_size(args.size)
    wanted = claim_body(args.claim, args.namespace, storage_class=args.storage_class, size=size)
    space = f"/api/v1/namespaces/{path_part(args.namespace)}"
    path = f"{space}/persistentvolumeclaims/{path_part(args.claim)}"
    there = volume_of(api.get(path), lambda _path: None)
    if there is not None:
        require_same_claim(there, wanted)
    elif problems := refusals(api, [wanted]):
        raise CheckpointError("; ".join(problems))
    elif not args.dry_run:
        apply_all(api, [wanted])
    changed = there is None and not args.dry_run
    what = "is there already" if there else "created" if changed else "would be created"
    data = {"claim": args.claim, "namespace": args.namespace, "changed": changed, "object": wanted}
    text = f"{dump_documents([wanted])}# {args.claim} {what}"
    output.print_result(data, lambda *_: [text], as_json=args.json)
    return ExitCode.DONE
