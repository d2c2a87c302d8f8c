"""Print the script that completes commands in a shell: bash, zsh or fish.

The script is static: shtab makes it once, from the parser of every command, and no Python starts while you
type. Make it again after an update. If it knows no word, the shell completes file names.

    bash   trainyard completion bash > ~/.local/share/bash-completion/completions/trainyard
    zsh    trainyard completion zsh > "${fpath[1]}/_trainyard"
    fish   trainyard completion fish > ~/.config/fish/completions/trainyard.fish

Reads:      the options of every command
Writes:     the script on stdout
Exit codes: 0 printed; 2 wrong usage

Example:    trainyard completion bash
"""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

import shtab

from trainyard.command.parser import SHOW_PARSER, ParserFound, script_parser
from trainyard.commands import GROUPS, module_name
from trainyard.errors import ExitCode

SHELLS = ("bash", "zsh", "fish")


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument("shell", choices=SHELLS, help="the shell that reads the script")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    sys.stdout.write(shtab.complete(complete_parser(), args.shell) + "\n")
    return ExitCode.DONE


def complete_parser() -> argparse.ArgumentParser:
    """Return one parser with all listed commands as subcommands, of one word or two."""
    root = argparse.ArgumentParser("trainyard", add_help=False)
    groups = {"": root.add_subparsers()}
    for name, text in (row for names in GROUPS.values() for row in names.items()):
        group, _, last = name.rpartition(" ")
        parser = parser_of(name)
        # `cluster` and `job` name what they do in a positional argument: each value is a subcommand.
        place = next((action for action in parser._actions if action.dest == "command"), None)
        if place is not None and place.choices and not group:
            parser._actions.remove(place)
            group, lasts = name, tuple(place.choices)
        else:
            lasts = (last,)
        if group not in groups:  # `network` is a command itself, too
            owner = groups[""].choices.get(group) or groups[""].add_parser(group, help=text, add_help=False)
            groups[group] = owner.add_subparsers()
        for each in lasts:
            added = groups[group].add_parser(each, help=text, add_help=False, parents=[parser])
            for action in added._actions:
                if action.type is not None and not action.choices and "DIR" in str(action.metavar):
                    action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
                elif not action.choices and action.nargs != 0:
                    action.complete = shtab.FILE  # type: ignore[attr-defined]
    return root


def parser_of(name: str) -> argparse.ArgumentParser:
    """Return the parser of a command."""
    try:
        import_module(f"trainyard.commands.{module_name(name)}").parse_args([SHOW_PARSER])
    except ParserFound as found:
        return found.parser
    raise AssertionError(f"{name}: parse_args builds no parser")
