#!/usr/bin/env python3
"""Run another training program on one node of a job, and keep a run directory for it.

    first node    run.json, config.yaml, events ──> program ──> rows, its last checkpoint, outcome
    other nodes   program ──> rows, if this node prints them ──> how it ended

Rows are read from what the program prints; what it prints is shown and kept in logs/node-N.log. The run has
succeeded only when the program ended with 0 on every node and its log shows the last step. What such a
record proves, and what not, is in docs/jobs.md.

Reads:      --program (JSON, as a plan has it); --config; the operator's variables
Writes:     the run directory; what the program writes
Exit codes: 0 every step was done; 1 not, or another node failed; 2 wrong usage or configuration; 75 stopped
            with a checkpoint: run it again to go on; else the exit code of the program
Example:    scripts/run_program.py --program /etc/trainyard/program.json --config /etc/trainyard/config.yaml
            --run-dir /checkpoints/llama --nproc-per-node 8
"""

import argparse
import logging
import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.command import arguments, handler, output
from trainyard.command.parser import script_parser
from trainyard.errors import CheckpointError, ConfigError, DamagedFileError

if TYPE_CHECKING:
    from trainyard.config.schema import Config
    from trainyard.jobs.recipes.recipe_order import RecordedRecipe
    from trainyard.run.directory import RunDirectory
    from trainyard.run.foreign.own_checkpoint import OwnCheckpoint, TakenCheckpoint
    from trainyard.run.launch_environment import Node

LOG = logging.getLogger(__name__)
HOUSE = Path(__file__).resolve().parent.parent
LOCKS = {"verl": "requirements-verl.txt"}
"""Recipe -> lock of its image, where that is not the training lock."""
ENDS_SECONDS = 120.0


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__, reads_config=True)
    parser.add_argument("--program", type=arguments.path, required=True, metavar="FILE", help="what to run")
    parser.add_argument("--run-dir", type=arguments.path, required=True, metavar="DIR", help="of the run")
    parser.add_argument(
        "--nproc-per-node", type=arguments.processes, default=1, metavar="N", help="processes of this node"
    )
    grace = "from SIGTERM to the end of the program; default: 30s"
    parser.add_argument("--grace", type=arguments.duration, default="30s", metavar="DURATION", help=grace)
    parser.add_argument("--dry-run", action="store_true", help="print the command, run nothing")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    output.configure_logging(args.log_level)
    from trainyard.config.load import load_config
    from trainyard.jobs.recipes import RECORDED
    from trainyard.run.directory import RunDirectory
    from trainyard.run.launch_environment import AGENT, Node, place_in_run

    sheet = sheet_of(args.program)
    recipe, config = RECORDED[sheet["recipe"]], load_config(args.config, args.set).config
    place = place_in_run(os.environ, args.nproc_per_node, has_agent=shutil.which(AGENT) is not None)
    node = place if isinstance(place, Node) else Node(1, 0, args.nproc_per_node)
    command = command_of(sheet, node, args)
    if args.dry_run:
        output.print_json({"command": command, "environment": sheet["environment"]})
        return 0
    return kept(command, sheet, recipe, config, node=node, directory=RunDirectory(args.run_dir.absolute()))


def sheet_of(path: Path) -> dict[str, Any]:
    """Return what the plan says of the program. Raises ConfigError for anything else."""
    from trainyard.jobs.job_plan import FILES_DIRECTORY
    from trainyard.jobs.recipes import RECORDED
    from trainyard.run.untrusted_files import parse_json_object, read_bytes

    try:
        sheet = parse_json_object(read_bytes(path), str(path))
    except (OSError, DamagedFileError) as error:
        raise ConfigError(f"--program {path}: cannot be read ({error})") from None
    wanted = {"recipe": str, "command": list, "torchrun": bool, "steps": int, "checkpoints": str}
    for name, kind in {**wanted, "environment": dict}.items():
        if not isinstance(sheet.get(name), kind):
            raise ConfigError(f"--program {path}: {name} is missing or no {kind.__name__}")
    if sheet["recipe"] not in RECORDED:
        raise ConfigError(f"--program {path}: {sheet['recipe'][:80]!r} is none of {', '.join(RECORDED)}")
    words = [str(word).replace(FILES_DIRECTORY, str(path.parent)) for word in sheet["command"]]
    return {**sheet, "command": words}


def command_of(sheet: dict[str, Any], node: "Node", args: argparse.Namespace) -> list[str]:
    from trainyard.run.launch_environment import launcher_options

    if not sheet["torchrun"]:
        return list(sheet["command"])
    options = launcher_options(node, args.nproc_per_node, grace_seconds=max(1, int(args.grace)))
    launcher = [node.agent[0]] if node.agent else [sys.executable, "-m", "torch.distributed.run"]
    return [*launcher, *options, *sheet["command"]]


def kept(
    command: list[str],
    sheet: dict[str, Any],
    recipe: "RecordedRecipe",
    config: "Config",
    *,
    node: "Node",
    directory: "RunDirectory",
) -> int:
    """Run the program between the first and the last record of its run; return the exit code of this node."""
    from trainyard.gateways.process import run_handing_on
    from trainyard.run.directory import make_run_folder
    from trainyard.run.foreign.node_ends import tell_end
    from trainyard.run.foreign.row_keeper import RowKeeper
    from trainyard.run.launch_environment import VARIABLES

    make_run_folder(directory.logs)
    first, number = not node.rank, node.rank or 0
    if first:
        begin_record(sheet, recipe, config, node=node, directory=directory)
    rows = RowKeeper(directory.metrics_file, log_steps=config.monitoring.log_steps, last=sheet["steps"])

    def read(line: str) -> None:
        row = recipe.row_of(line) if first or not recipe.ON_FIRST_NODE else None
        if row is not None and rows.keep(row):
            LOG.info("step %s of %s: loss %s", row["step"], sheet["steps"], row.get("loss", "not shown"))

    began = time.monotonic()
    without = () if node.agent or not sheet["torchrun"] else VARIABLES
    ended = run_handing_on(
        command,
        read,
        log=directory.logs / f"node-{number}.log",
        environment=sheet["environment"],
        without=without,
    )
    rows.close()
    tell_end(directory, number, ended.exit_code)
    if not first:
        return ended.exit_code
    return end_record(ended, sheet, recipe, node=node, directory=directory, seconds=time.monotonic() - began)


def begin_record(
    sheet: dict[str, Any],
    recipe: "RecordedRecipe",
    config: "Config",
    *,
    node: "Node",
    directory: "RunDirectory",
) -> None:
    from trainyard.config.load import config_sha256, dump_yaml
    from trainyard.gateways.git import git_facts
    from trainyard.run.foreign.kept_run import begin
    from trainyard.run.foreign.node_ends import forget_ends
    from trainyard.run.identity import choose_run_id, provenance

    here = node.processes if isinstance(node.processes, int) else 1
    facts = {
        **provenance(
            git_facts(HOUSE),
            lock=HOUSE / LOCKS.get(sheet["recipe"], "requirements-training.txt"),
            config_file=directory.config_file,
        ),
        "recipe": sheet["recipe"],
        "seed": config.training.seed,
        "config_sha256": config_sha256(config),
        "plan": {"steps": sheet["steps"]},
        "hardware": {"world_size": node.nodes * here, "local_world_size": here},
    }
    own = own_checkpoint(sheet, recipe)
    forget_ends(directory)
    run_id = choose_run_id(directory.path, several=node.nodes > 1)
    begin(directory, run_id, facts, dump_yaml(config), resumed_at=own.step if own else None)


def end_record(
    ended: Any,
    sheet: dict[str, Any],
    recipe: "RecordedRecipe",
    *,
    node: "Node",
    directory: "RunDirectory",
    seconds: float,
) -> int:
    from trainyard.run.foreign.kept_run import ProgramEnd, finish
    from trainyard.run.foreign.node_ends import wait_for_ends

    others = None
    if sheet["torchrun"] and ended.exit_code == 0:
        others = wait_for_ends(directory, range(1, node.nodes), seconds=ENDS_SECONDS)
    taken = taken_checkpoint(own_checkpoint(sheet, recipe), directory)
    end = ProgramEnd(ended.exit_code, told=ended.told, others=others, checkpoint=taken)
    return finish(directory, end, seconds=seconds)


def own_checkpoint(sheet: dict[str, Any], recipe: "RecordedRecipe") -> "OwnCheckpoint | None":
    from trainyard.run.foreign.own_checkpoint import newest_own_checkpoint

    return newest_own_checkpoint(Path(sheet["checkpoints"]), recipe.TRACKER, recipe.checkpoint_name)


def taken_checkpoint(own: "OwnCheckpoint | None", directory: "RunDirectory") -> "TakenCheckpoint | None":
    """Take the newest checkpoint into the run directory; where that fails, say so and go on without it."""
    from trainyard.run.foreign.own_checkpoint import take
    from trainyard.run.identity import read_run

    if own is None:
        return None
    try:
        return take(own, directory, str(read_run(directory.run_file)["run_id"]))
    except (OSError, CheckpointError) as error:
        LOG.error("%s: the checkpoint was not taken into the run directory (%s)", own.path, error)
        return None


if __name__ == "__main__":
    sys.exit(handler.exit_code_of(main))
