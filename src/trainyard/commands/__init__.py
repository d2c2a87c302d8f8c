"""One module per command: arguments in, calls to the rooms, text out. `COMMANDS` lists those of `trainyard`.

A new command is one module here and one line in the registry. `scripts/NAME.py` exists for the steps that
workflows, the buildspec and documents name; it calls the module of the same name.
"""

import ast
import sys
import textwrap
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path

from trainyard import __version__
from trainyard.command.handler import exit_code_of
from trainyard.command.visible_text import visible_line
from trainyard.errors import ConfigError, ExitCode

COMMANDS = {
    "run": "run",
    "train": "train",
    "pod": "run_pod",
    "evaluate": "evaluate",
    "prove": "prove_run",
    "report": "training_dashboard",
    "watch": "monitor_training",
    "tell": "notify_slack",
    "export": "export_model",
    "plan": "plan_training",
    "doctor": "check_readiness",
    "environment": "check_environment",
    "prepare": "prepare_data",
    "fetch": "fetch_resume",
    "step": "run_step",
    "step plan": "plan_run",
    "step continue": "continue_lineage",
    "step wait": "wait_for_runner",
    "explain": "explain_failure",
    "debug-dump": "debug_dump",
    "network": "judge_network",
    "network measure": "measure_network",
    "config show": "show_config",
    "config check": "check_configs",
    "store sync": "training_artifact_sync",
    "store ls": "list_artifacts",
    "store verify": "verify_artifact",
    "store restore": "restore_artifact",
    "store promote": "promote_artifact",
    "store prune": "prune_artifacts",
    "store check": "check_store",
    "cluster": "manage_cluster",
    "job deploy": "deploy_training_job",
    "job checkpoints": "manage_checkpoints",
    "job ls": "manage_training_job list",
    "job": "manage_training_job",
    "eks": "eks_job",
    "image lint": "lint_image",
    "image build": "build_image",
    "image check": "check_image",
    "image push": "push_image",
    "lint-environment": "lint_environment",
    "init github": "setup_github",
    "init aws": "setup_codebuild",
    "init trust-policy": "write_trust_policy",
    "skills install": "install_skills",
    "completion": "print_completion",
}
# Words of the command line -> the module, and arguments that come before the given ones. The longest match
# counts: `job status` is `manage_training_job` with `status` as its first argument.
_MOST_WORDS = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run `trainyard COMMAND …`, and return the exit code of the process."""
    return exit_code_of(lambda: run_command(list(sys.argv[1:] if argv is None else argv)))


def run_command(words: Sequence[str]) -> int:
    """Run the command that `words` begin with, and return its exit code. Without one, print the list."""
    if not words or words[0] in ("-h", "--help"):
        sys.stdout.write(command_list())
        return ExitCode.DONE if words else ExitCode.USAGE
    if words[0] == "--version":
        sys.stdout.write(f"trainyard {__version__}\n")
        return ExitCode.DONE
    for count in range(_MOST_WORDS, 0, -1):
        name = " ".join(words[:count])
        if name in COMMANDS:
            module, *first = COMMANDS[name].split()
            if first:  # `job ls` is `job` with `list`
                name = next(other for other, command in COMMANDS.items() if command == module)
            sys.argv = [f"trainyard {name}", *first, *words[count:]]  # usage lines name the command
            return int(import_module(f"{__name__}.{module}").main())
    if words[1:2] in (["-h"], ["--help"]) and (group := names_in(words[0])):
        sys.stdout.write(command_list(group))
        return ExitCode.DONE
    raise ConfigError(explain_unknown(words))


def names_in(group: str) -> list[str]:
    """Return the commands of a group, such as `store`."""
    return [name for name in COMMANDS if name.startswith(f"{group} ")]


def explain_unknown(words: Sequence[str]) -> str:
    """Return the error for words that begin with no command: the nearest ones, and where the list is."""
    if group := names_in(words[0]):
        near = get_close_matches(" ".join(words[:_MOST_WORDS]), group, 1)
        meant = f" Did you mean trainyard {near[0]}?" if near and len(words) > 1 else ""
        return (
            f"trainyard {visible_line(words[0])} is one of: {', '.join(group)}.{meant} See trainyard --help."
        )
    near = get_close_matches(" ".join(words[:_MOST_WORDS]), COMMANDS, 1) or get_close_matches(
        words[0], COMMANDS, 1
    )
    meant = f" Did you mean trainyard {near[0]}?" if near else ""
    return f"trainyard has no command {visible_line(words[0])[:60]!r}.{meant} See trainyard --help."


def command_list(names: Iterable[str] = COMMANDS) -> str:
    """Return the help text: the commands, each with the first sentence of its module's docstring."""
    width = max(map(len, COMMANDS)) + 4
    rows = [
        textwrap.fill(f"  {name:<{width - 2}}{summary(name)}", 80, subsequent_indent=" " * width)
        for name in names
    ]
    return "\n".join(
        ["usage: trainyard COMMAND [options]; trainyard COMMAND --help explains one", "", *rows, ""]
    )


def summary(name: str) -> str:
    """Return the first sentence about a command, from the docstring of its module, which is not imported."""
    module, *first = COMMANDS[name].split()
    if first:
        group = next(other for other, command in COMMANDS.items() if command == module)
        return f"The same as {' '.join((group, *first))}."
    source = (Path(__file__).parent / f"{module}.py").read_text(encoding="utf-8")
    docstring = " ".join((ast.get_docstring(ast.parse(source)) or "").partition("\n\n")[0].split())
    return docstring.partition(". ")[0].removesuffix(".") + "."
