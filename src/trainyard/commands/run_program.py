"""Run another training program on one node of a job, and keep a run directory for it.

    first node    run.json, config.yaml, events ──> program ──> rows, its last checkpoint, outcome
    other nodes   program ──> rows, if this node prints them ──> its exit code

Rows of metrics are read from the program's output, which is also shown and kept in logs/node-N.log. The run
has succeeded only when the program ended with 0 on every node and its log shows the last step. docs/jobs.md
says what such a record proves.

Reads:      --program (the JSON that the plan wrote); --config; the operator's variables
Writes:     the run directory; what the program writes
Exit codes: 0 every step was done; 1 steps are missing, or another node failed; 2 wrong usage or
            configuration; 75 stopped with a checkpoint, run it again to resume; else that of the program
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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from trainyard.command import arguments, output
from trainyard.command.checkout import REPOSITORY_ROOT
from trainyard.command.parser import script_parser

if TYPE_CHECKING:
    from trainyard.config.schema import Config
    from trainyard.gateways.process import HandedOn
    from trainyard.jobs.recipes.recipe_order import RecordedRecipe
    from trainyard.jobs.recipes.wrapped_program import ProgramDescription
    from trainyard.programs.checkpoints.program_checkpoints import ProgramCheckpoint, ProgramCheckpoints
    from trainyard.run.directory import RunDirectory
    from trainyard.run.foreign.metric_rows import MetricRowWriter
    from trainyard.run.launch_environment import NodeLauncher

LOG = logging.getLogger(__name__)
LOCKS = {"verl": "requirements-verl.txt"}
"""Recipe -> the lock of its image, if that is not the training lock."""
ENDS_SECONDS = 120.0


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__, reads_config=True)
    parser.add_argument(
        "--program", type=arguments.path, required=True, metavar="FILE", help="program to run, as JSON"
    )
    parser.add_argument(
        "--run-dir", type=arguments.path, required=True, metavar="DIR", help="directory of the run"
    )
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
    from trainyard.jobs.recipes.wrapped_program import read_description
    from trainyard.run.directory import RunDirectory
    from trainyard.run.launch_environment import AGENT, NodeLauncher, place_in_run
    from trainyard.training.data.config_of_run import has_been_trained

    sheet = read_description(args.program, RECORDED)
    recipe, config = RECORDED[sheet.recipe], load_config(args.config, args.set).config
    is_done = has_been_trained(args.run_dir, args.config, args.set, by_program=True)
    if not args.dry_run and is_done and is_same_program(args.run_dir, sheet):
        LOG.info("%s: all steps were done before, so the program is not started again", args.run_dir)
        return 0
    place = place_in_run(os.environ, args.nproc_per_node, has_agent=shutil.which(AGENT) is not None)
    node = place if isinstance(place, NodeLauncher) else NodeLauncher(1, 0, args.nproc_per_node)
    command = command_of(sheet, node, args)
    if args.dry_run:
        output.print_json({"command": command, "environment": sheet.environment})
        return 0
    return ProgramRun(sheet, recipe, config, node, RunDirectory(args.run_dir.absolute())).run(command)


def is_same_program(run_dir: Path, sheet: "ProgramDescription") -> bool:
    """Return whether the run on record had these steps, this command and these variables."""
    from trainyard.run.identity import read_run

    run = read_run(run_dir / "run.json")
    recorded = run.get("program_sha256", program_sha256(sheet))  # older runs have no digest
    return bool(run["plan"]["steps"] == sheet.steps and recorded == program_sha256(sheet))


def program_sha256(sheet: "ProgramDescription") -> str:
    """Return the digest of the program's command and variables."""
    from trainyard.config.load import values_sha256

    return values_sha256({"command": list(sheet.command), "environment": dict(sheet.environment)})


def command_of(sheet: "ProgramDescription", node: "NodeLauncher", args: argparse.Namespace) -> list[str]:
    from trainyard.run.launch_environment import launcher_options

    if not sheet.torchrun:
        return list(sheet.command)
    options = launcher_options(node, args.nproc_per_node, grace_seconds=max(1, int(args.grace)))
    launcher = [node.agent[0]] if node.agent else [sys.executable, "-m", "torch.distributed.run"]
    return [*launcher, *options, *sheet.command]


@dataclass(frozen=True)
class ProgramRun:
    """A run of the program on this node, and its record."""

    sheet: "ProgramDescription"
    recipe: "RecordedRecipe"
    config: "Config"
    node: "NodeLauncher"
    directory: "RunDirectory"

    def run(self, command: list[str]) -> int:
        """Run the program between the first and the last record; return the exit code of this node."""
        from trainyard.gateways.process import run_handing_on
        from trainyard.run.atomic_files import make_folder
        from trainyard.run.foreign.node_exit_codes import tell_end
        from trainyard.run.launch_environment import VARIABLES

        make_folder(self.directory.logs)
        first, number = not self.node.rank, self.node.rank or 0
        own = self.own_checkpoints().newest
        if first:
            self.begin(own)
        rows = self.rows_of(own)

        def read(line: str) -> None:
            row = self.recipe.row_of(line) if first or not self.recipe.ON_FIRST_NODE else None
            if row is not None and rows.keep(row):
                LOG.info(
                    "step %s of %s: loss %s", row["step"], self.sheet.steps, row.get("loss", "not shown")
                )

        began = time.monotonic()
        ended = run_handing_on(
            command,
            read,
            log=self.directory.logs / f"node-{number}.log",
            environment=self.sheet.environment,
            without=() if self.node.agent or not self.sheet.torchrun else VARIABLES,
        )
        rows.close()
        tell_end(self.directory, number, ended.exit_code)
        return self.finish(ended, seconds=time.monotonic() - began) if first else ended.exit_code

    def rows_of(self, own: "ProgramCheckpoint | None") -> "MetricRowWriter":
        """The writer of the rows; it records when they show that the program did not resume from `own`."""
        from trainyard.run.foreign.foreign_records import note_other_rows
        from trainyard.run.foreign.metric_rows import MetricRowWriter

        def note(step: int) -> None:
            LOG.warning("step %s is trained again, so the newest checkpoint was not resumed from", step)
            note_other_rows(self.directory, step)

        return MetricRowWriter(
            self.directory.metrics_file,
            log_steps=self.config.monitoring.log_steps,
            last=self.sheet.steps,
            resumed_at=(own.step or 0) if own else 0,
            on_other_row=note,
        )

    def begin(self, own: "ProgramCheckpoint | None") -> None:
        from trainyard.config.load import config_sha256, dump_yaml
        from trainyard.gateways.git import program_git_facts
        from trainyard.programs.checkpoints.program_checkpoints import state_of
        from trainyard.run.foreign.foreign_records import begin, program_facts
        from trainyard.run.foreign.node_exit_codes import forget_ends
        from trainyard.run.identity import choose_run_id, collect_provenance

        lock = REPOSITORY_ROOT / LOCKS.get(self.sheet.recipe, "requirements-training.txt")
        git = program_git_facts(self.sheet.command)
        facts = program_facts(
            collect_provenance(git, lock=lock, config_file=self.directory.config_file),
            recipe=self.sheet.recipe,
            seed=self.config.training.seed,
            config_sha256=config_sha256(self.config),
            plan={"steps": self.sheet.steps, "log_steps": self.config.monitoring.log_steps},
            hardware=self.hardware(),
        )
        facts["program_sha256"] = program_sha256(self.sheet)
        run_id = choose_run_id(self.directory.path, several=self.node.nodes > 1)
        begin(
            self.directory,
            run_id,
            facts,
            dump_yaml(self.config),
            resumed_at=own.step if own else None,
            state=state_of(own) if own else None,
        )
        forget_ends(self.directory)

    def hardware(self) -> dict[str, int]:
        """The processes of the whole run, as far as known, and those of this node."""
        here = self.node.processes if isinstance(self.node.processes, int) else 1
        nodes = max(self.node.nodes, self.sheet.nodes or 0)
        if self.sheet.nodes is None and not self.sheet.torchrun:  # it may have workers on other nodes
            return {"local_world_size": here}
        return {"world_size": nodes * here, "local_world_size": here}

    def finish(self, ended: "HandedOn", *, seconds: float) -> int:
        from trainyard.programs.checkpoints.program_checkpoints import state_of
        from trainyard.programs.checkpoints.taken_checkpoint import take_newest
        from trainyard.run.foreign.foreign_records import ProgramEnd, finish, has_other_rows
        from trainyard.run.foreign.node_exit_codes import wait_for_ends
        from trainyard.run.waiting import describe_wait

        others = None
        if self.sheet.torchrun and ended.exit_code == 0:
            with describe_wait("the exit codes of the other nodes", ENDS_SECONDS):
                others = wait_for_ends(self.directory, range(1, self.node.nodes), seconds=ENDS_SECONDS)
        found, own = self.own_checkpoints(), []
        for each in found.complete:
            if has_other_rows(self.directory, state_of(each)):
                LOG.error("%s: not taken, because its steps were trained again after it was saved", each.path)
                break
            own.append(each)
        taken = take_newest(replace(found, complete=tuple(own)), self.directory)
        end = ProgramEnd(
            ended.exit_code, told=ended.told, others=others, checkpoint=taken, skipped=found.notes()
        )
        return finish(self.directory, end, seconds=seconds)

    def own_checkpoints(self) -> "ProgramCheckpoints":
        """The program's own checkpoints; newer ones that are not complete are logged with the reason."""
        from trainyard.programs.checkpoints.program_checkpoints import find_program_checkpoints

        folder = Path(self.sheet.checkpoints)
        found = find_program_checkpoints(folder, "*", formats=self.recipe.CHECKPOINTS)
        found = replace(found, complete=tuple(each for each in found.complete if each.step is not None))
        for note in found.notes():
            LOG.warning("%s: %s", folder, note)
        return found
