"""The argument parser that all scripts share: help from the docstring, and the options every script has.

The types of options are those of `command.arguments`.
"""

import argparse
import contextlib
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, NoReturn

from trainyard.command import arguments, output
from trainyard.errors import ConfigError, ExitCode

LOG_LEVELS = ("debug", "info", "warning", "error")

# The only argument with which a command's `parse_args` raises ParserFound instead of parsing.
SHOW_PARSER = "\0parser"


class ParserFound(Exception):  # noqa: N818 - no error
    """Carries the parser of a command, which only the command can build."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        super().__init__()
        self.parser = parser


class UsageExit(SystemExit):
    """Ends a command whose arguments are wrong; `message` has been printed."""

    def __init__(self, message: str) -> None:
        super().__init__(int(ExitCode.USAGE))
        self.message = message


class CommandParser(argparse.ArgumentParser):
    """Prints the error first, with the nearest name, and a short usage last."""

    _given: Sequence[str] = ()
    only_for: Mapping[str, Sequence[str]] = MappingProxyType({})
    """Options that only some values of the positional `command` accept."""
    check: "Callable[[CommandParser, argparse.Namespace], None] | None" = None
    """Refuses options that contradict each other, and completes those that are open."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> argparse.Namespace:  # type: ignore[override]
        return self._apply_check(super().parse_args(args, namespace))

    def _apply_check(self, found: argparse.Namespace) -> argparse.Namespace:
        for flag, commands in self.only_for.items():
            if vars(found)[flag.removeprefix("--").replace("-", "_")] and found.command not in commands:
                self.error(f"{flag} is for {' and '.join(commands)}")
        if self.check is not None:
            self.check(self, found)
        return found

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._given = [str(word) for word in (sys.argv[1:] if args is None else args)]
        if self._given == [SHOW_PARSER]:
            raise ParserFound(self)
        found, others = super().parse_known_args(args, namespace)
        output.configure_logging(found.log_level)
        return found, others

    def _parse_optional(self, arg_string: str) -> Any:
        """Read an option with _ for -, as document 002 spells them: --max_attempts."""
        flag, equals, value = arg_string.partition("=")
        if flag.startswith("--") and flag not in self._option_string_actions:
            arg_string = f"{flag.replace('_', '-')}{equals}{value}"
        return super()._parse_optional(arg_string)

    def read_values(self, given: Mapping[str, object]) -> argparse.Namespace:
        """Return the options by values of Python instead of words; those that are not given have defaults.

        A name is that of the option, with _ for -. A value that is None, False or empty is not given.
        Raises ConfigError for an unknown name or a wrong value.
        """
        found = dict(self._defaults) | {
            action.dest: _read(action, action.default) if isinstance(action.default, str) else action.default
            for action in self._actions
            if action.default is not argparse.SUPPRESS
        }
        known = {word: action for action in self._actions for word in action.option_strings or [action.dest]}
        for name, value in given.items():
            action = known.get(f"--{name.replace('_', '-')}") or known.get(name)
            if action is None:
                raise ConfigError(
                    f"{name} is no option" + _meant(name, [each.dest for each in self._actions], ())
                )
            if value is None or value is False or value in ("", []):
                continue
            each = [_read(action, one) for one in (value if isinstance(value, list | tuple) else [value])]
            is_list = isinstance(action, argparse._AppendAction) or action.nargs == "*"
            found[action.dest] = True if action.nargs == 0 else each if is_list else each[0]
        return self._apply_check(argparse.Namespace(**found))

    def print_help(self, file: Any = None) -> None:
        """Print the help; after the name of a command, such as `status`, the help of that command."""
        place = next((each for each in self._actions if each.dest == "command" and each.choices), None)
        command = next((word for word in self._given if place and word in (place.choices or ())), None)
        if place is not None and command is not None:
            self.prog, place.help = f"{self.prog} {command}", argparse.SUPPRESS
            for action in self._actions:
                if command not in self.only_for.get((action.option_strings or [""])[-1], (command,)):
                    action.help = argparse.SUPPRESS
        super().print_help(file)

    def error(self, message: str) -> NoReturn:
        message = self._with_nearest_name(message)
        with contextlib.suppress(OSError):  # nobody reads stderr
            sys.stderr.write(f"{self.prog}: error: {message}\n{self._short_usage()}\n")
            sys.stderr.flush()
        raise UsageExit(message)

    def _with_nearest_name(self, message: str) -> str:
        """Return the message, with the nearest valid name for an unknown word."""
        if choice := re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message):
            near = get_close_matches(choice[1], re.findall(r"[\w.-]+", choice[2]), 1)
            return message + (f"; did you mean {near[0]!r}?" if near else "")
        if not message.startswith(("the following", "one of the arguments", "unrecognized arguments")):
            return message
        words = self._given[: self._given.index("--")] if "--" in self._given else self._given
        names = [name for action in self._actions for name in action.option_strings if name.startswith("--")]
        positionals = [action for action in self._actions if not action.option_strings]
        for word in words:
            flag = word.partition("=")[0]
            if flag.startswith("--") and not any(name.startswith(flag.replace("_", "-")) for name in names):
                return f"unexpected argument {flag!r}" + _meant(flag, names, positionals)
        required = [action for action in self._actions if action.required and action.option_strings]
        if words and not words[0].startswith("-") and not positionals and required:
            meant = f"{required[0].option_strings[-1]} {words[0]}"
            return f"unexpected argument {words[0]!r}; did you mean '{meant}'?"
        return message

    def _short_usage(self) -> str:
        """One line: the command, what it needs, and where the rest is."""
        words = [self.prog]
        required = [group._group_actions for group in self._mutually_exclusive_groups if group.required]
        chosen = [action for group in required for action in group]
        for action in self._actions:
            if action.required and action.option_strings:
                words.append(f"{action.option_strings[-1]} {action.metavar or action.dest.upper()}")
            elif not action.option_strings and action.nargs != "..." and action not in chosen:
                name = str(action.metavar or action.dest.upper())
                words.append(f"[{name}]" if action.nargs in ("*", "?") else name)
        for group in required:
            names = [each.option_strings[-1] if each.option_strings else str(each.metavar) for each in group]
            if "RUN" in names:
                names.remove("--run-dir")  # the same
            words.append(f"({' | '.join(names)})" if names[1:] else names[0])
        return f"usage: {' '.join(words)} … (--help lists all)"


def _meant(flag: str, names: Sequence[str], positionals: Sequence[argparse.Action]) -> str:
    ending = [name for name in names if name.endswith(f"-{flag.removeprefix('--')}")]
    if near := get_close_matches(flag, names, 1) or ending:
        return f"; did you mean {near[0]!r}?"
    if positionals and positionals[0].required:
        return f"; {positionals[0].metavar or positionals[0].dest.upper()} takes no flag"
    return ""


def _read(action: argparse.Action, value: object) -> Any:
    """Return one value of an option as the command line would. Raises ConfigError."""
    read = action.type if callable(action.type) else arguments.text
    found = arguments.parse(read, str(value), action.dest)
    if action.choices is not None and found not in action.choices and value != action.default:
        raise ConfigError(f"{action.dest}: {found!r} is none of {', '.join(map(str, action.choices))}")
    return found


def script_parser(
    doc: str | None,
    *,
    reads_config: bool = False,
    needs_config: bool = True,
    reads_store: bool = False,
    needs_store: bool = True,
    dry_run: str = "",
    json: str = "",
    only_for: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> CommandParser:
    """An argument parser whose help is the script's docstring, with the options that all scripts share.

    `reads_config` and `reads_store` add those of the scripts that work for a configuration or with a store;
    `dry_run` is the help of --dry-run, `json` what --json prints. `only_for` maps options to the values of
    the positional `command` that accept them; with another one they are refused.
    """
    new = CommandParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    new.only_for = only_for
    new.register("type", None, arguments.text)  # the type of every option without one
    if reads_config:
        new.add_argument(
            "--config", type=arguments.path, required=needs_config, metavar="FILE", help="the configuration"
        )
        how = "change one value; may be repeated"
        new.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=how)
    if reads_store:
        url = "s3://bucket/prefix or file:///folder"
        new.add_argument("--store", required=needs_store, metavar="URL", help=url)
    if dry_run:
        add_flag(new, "--dry-run", dry_run)
    if json:
        add_flag(new, "--json", f"print {json} as JSON")
    new.add_argument("--log-level", choices=LOG_LEVELS, help="how much to log on stderr, default info")
    return new


def add_flag(place: argparse._ActionsContainer, name: str, text: str) -> None:
    """Add an option without a value."""
    place.add_argument(name, action="store_true", help=text)


def add_option(place: argparse._ActionsContainer, name: str, metavar: str, text: str, **more: Any) -> None:
    """Add an option with a value; `more` is as in argparse."""
    place.add_argument(name, metavar=metavar, help=text, **more)


class _Position(argparse.Action):
    """A position that may be left out because an option sets the same; then it keeps the option's value."""

    def __call__(self, _parser: Any, namespace: argparse.Namespace, values: Any, _option: Any = None) -> None:
        if values is not None:
            setattr(namespace, self.dest, values)


def add_run(place: Any, *, required: bool = False, text: str = "the run's directory") -> None:
    """Add the position RUN and the option --run-dir, which name the same.

    `place` is a parser, or a group of options of which one is taken.
    """
    if isinstance(place, argparse.ArgumentParser):
        place = place.add_mutually_exclusive_group(required=required)
    place.add_argument(
        "run_dir", metavar="RUN", nargs="?", type=arguments.run_directory, action=_Position, help=text
    )
    place.add_argument("--run-dir", metavar="DIR", type=arguments.run_directory, help="the same as RUN")


def add_run_number(parser: argparse.ArgumentParser, *, text: str) -> None:
    """Add the position N and the option --run-number of a command that takes runs from a store alone."""
    place = parser.add_mutually_exclusive_group()
    number = arguments.positive
    place.add_argument("run_number", metavar="N", nargs="?", type=number, action=_Position, help=text)
    place.add_argument("--run-number", metavar="N", type=number, help="the same as the position")


def take_run_number(args: argparse.Namespace) -> None:
    """Read a RUN that is a number as that of a run in --store."""
    if args.store and args.run_dir is not None and args.run_number is None and args.run_dir.name.isdecimal():
        args.run_number, args.run_dir = str(args.run_dir), None
