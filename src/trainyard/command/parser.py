"""The argument parser that all scripts share: help from the docstring, and the options every script has.

The types of options are those of `command.arguments`.
"""

import argparse
import contextlib
from collections.abc import Mapping, Sequence
from typing import NoReturn

from trainyard.command import arguments
from trainyard.errors import ExitCode

LOG_LEVELS = ("debug", "info", "warning", "error")
_MOST_REPEATED = 120
"""Longest word in a message of argparse."""


class _Parser(argparse.ArgumentParser):
    """Shortens the values that argparse repeats, and keeps exit code 2 when nobody reads stderr."""

    def error(self, message: str) -> NoReturn:
        with contextlib.suppress(OSError):  # before Python 3.11.3 argparse passed it on
            super().error(arguments.with_short_words(message, most=_MOST_REPEATED))
        raise SystemExit(ExitCode.USAGE)


def script_parser(doc: str | None, *, reads_config: bool = False) -> argparse.ArgumentParser:
    """An argument parser whose help is the script's docstring, with the options that all scripts share.

    `reads_config` adds those of the scripts that work for a configuration.
    """
    result = _Parser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.register("type", None, arguments.text)  # the type of every option without one
    if reads_config:
        result.add_argument(
            "--config", type=arguments.path, required=True, metavar="FILE", help="the configuration"
        )
        how = "change one value; may be repeated"
        result.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=how)
    level = "how much to log on stderr, default info"
    result.add_argument("--log-level", choices=LOG_LEVELS, help=level)
    return result


def refuse_options_of_other_commands(
    parser: argparse.ArgumentParser, args: argparse.Namespace, only_for: Mapping[str, Sequence[str]]
) -> None:
    """Refuse an option that `args.command` does not accept. `only_for` maps options to commands."""
    for flag, commands in only_for.items():
        if vars(args)[flag.removeprefix("--").replace("-", "_")] and args.command not in commands:
            parser.error(f"{flag} is for {' and '.join(commands)}")
