"""Print the resolved configuration: every value, after extending files and --set.

Reads:  the configuration file, the files it extends, --set; for the keys of the model that are not set,
        config.json or the header of model.path.
Writes: YAML (JSON with --json) to stdout; with --explain a line per value, with its origin.
Exit codes: 0 printed; 2 the configuration cannot be used, every error named by file, line and key.

Example: trainyard config show --config configs/smoke.yaml --set training.max_steps=50 --explain
"""

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trainyard.command import output
from trainyard.command.parser import add_flag, script_parser
from trainyard.config import problems
from trainyard.config.load import dump_yaml
from trainyard.training.weights.pretrained import load_with_weights

if TYPE_CHECKING:
    from trainyard.config.load import LoadedConfig


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__, reads_config=True, json="the result")
    add_flag(parser, "--explain", "show the origin of each value")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    loaded = load_with_weights(args.config, args.set)
    sys.stdout.write(render(loaded, explain=args.explain, as_json=args.json))
    return 0


def render(loaded: "LoadedConfig", *, explain: bool, as_json: bool) -> str:
    """Return the configuration in the requested format."""
    values = loaded.config.to_plain()
    if explain and as_json:
        rows = {
            key: {"value": problems.value_at(values, key), "file": origin.file}
            | ({} if origin.line is None else {"line": origin.line})
            for key, origin in loaded.origins.items()
        }
        return output.json_text(rows) + "\n"
    if explain:
        return "".join(f"{line}\n" for line in problems.explanation_lines(values, loaded.origins))
    return output.json_text(values) + "\n" if as_json else dump_yaml(loaded.config)
