"""Export a run's model as a Hugging Face folder for transformers, vLLM and llama.cpp's converter.

The checkpoint is verified first. The folder gets safetensors (several files above 2 GiB), config.json and the
run's tokenizer files. A run on bytes gets a tokenizer that maps each byte of UTF-8 to its own number; 0 ends
a document.

Reads:   the run directory (config.yaml, checkpoints/) and the tokenizer that its model.tokenizer names.
Writes:  the folder --to, complete or not at all; nothing with --dry-run; with --json its contents on stdout.
Exit codes: 0 exported; 1 no checkpoint verifies, or the folder cannot be written; 2 the run, the step or the
         tokenizer does not exist, or --to exists; 4 the tokenizer is on the Hugging Face Hub, which cannot
         be reached.
Example: trainyard export --run-dir runs/20261120-214501-7c1f --to exported
"""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trainyard.command import arguments, output, terminal
from trainyard.command.parser import add_option, add_run, script_parser
from trainyard.report.facts.quantities import format_count, format_scaled
from trainyard.report.terminal.phase import PhaseDisplay
from trainyard.run.directory import RunDirectory
from trainyard.run.sizes import format_size

if TYPE_CHECKING:
    from trainyard.training.export import Export


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(
        __doc__, dry_run="print the plan, write nothing", json="the contents of the folder"
    )
    add_run(parser, required=True)
    which = "the checkpoint; newest, the default, is the newest that verifies"
    add_option(parser, "--step", "S|newest", which, type=arguments.step_or_newest)
    add_option(parser, "--to", "DIR", "a folder that does not exist yet", type=arguments.path, required=True)
    dtype = "type of the numbers"
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32", help=dtype)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    with terminal.show_live(PhaseDisplay("export", "importing torch")) as display:
        from trainyard.training.export import plan_export, require_absent, write_export

        require_absent(args.to)
        export = plan_export(RunDirectory(args.run_dir), args.step, dtype=args.dtype, progress=display)
    facts = {"to": str(args.to), **export.to_json()}
    if args.dry_run:
        output.announce("export", f"would write {summary(export)} → {args.to}")
    else:
        with terminal.show_live(display):
            files = write_export(export, args.to, display)
        facts["files"] = [{"path": f.path, "size": f.size, "sha256": f.sha256} for f in files]
        output.announce("export", f"{summary(export)} → {args.to}", "ok")
    if args.json:
        output.print_json(facts)
    return 0


def summary(export: "Export") -> str:
    """Return a line such as `step 600: 1.2 M parameters, 4.9 MB of float32 in 1 file`."""
    facts = export.to_json()
    amount = (
        f"{format_scaled(facts['parameters'])} parameters, {format_size(facts['bytes'])} of {export.dtype}"
    )
    return f"step {export.step}: {amount} in {format_count(len(export.shards), 'file')}"
