"""One module per command, with the command's name: arguments in, calls to the rooms, text out.

A new command is one module here and one line in the registry. The thirteen files in `scripts/` have the names
that documents use; each calls the module of its command.
"""

import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module

from trainyard import __version__
from trainyard.command.handler import exit_code_of
from trainyard.command.visible_text import visible_line
from trainyard.errors import ConfigError, ExitCode

# The words of a command -> what it does. Its module has the same name: `store sync` is `store_sync`. The
# longest match counts: `job status` is `job` with `status` as its first argument.
GROUPS: Mapping[str, Mapping[str, str]] = {
    "Set up and train": {
        "run": "Train, store and prove a model: the pipeline.",
        "train": "Train from a configuration.",
        "prepare": "Prepare the data of a configuration before training.",
        "plan": "Print the plan of a training: mesh, batches, memory, network, time and cost.",
        "doctor": "Check what a run needs: the machine, the store, AWS, GitHub, Slack and W&B.",
        "init program": "Write trainyard.yaml for a program of yours.",
        "init github": "Set a GitHub repository up for training.",
        "init aws": "Create what training and image builds need in AWS.",
        "config show": "Print the resolved configuration.",
        "config check": "Check configuration files.",
        "skills install": "Install the skills for coding agents.",
        "completion": "Print the script that completes commands in a shell.",
    },
    "Look at it": {
        "report": "Show a run: progress, figures, checkpoints, proof. With --write as a page.",
        "watch": "Watch a run or a job live, and report how it ended.",
        "runs": "List the runs of a folder or a store.",
        "metrics": "Print figures of a run by name.",
        "note": "Write a note or tags on a run.",
        "explain": "Explain why a run or a job failed.",
        "debug-dump": "Collect records, logs and versions of a run or a job into one archive.",
        "notify": "Post the state of a run to Slack.",
    },
    "Prove it and keep it": {
        "prove": "Prove a run: trained, learned, network, stored, repeatable.",
        "evaluate": "Evaluate a checkpoint by the command of the configuration.",
        "export": "Export the weights of a checkpoint as a folder that transformers loads.",
        "store sync": "Store a run, while it trains or once it has ended.",
        "store ls": "List the runs of a store.",
        "store verify": "Verify a stored run against its manifest.",
        "store restore": "Restore a checkpoint from a store.",
        "store promote": "Promote a proven checkpoint under a name.",
        "store prune": "Plan the removal of old checkpoints from a store, and do it.",
        "store check": "Check that a store can keep runs.",
    },
    "Clusters, jobs, images": {
        "cluster": "Check a cluster: check, capacity, nodes, fix, list.",
        "job deploy": "Send a training job to a cluster.",
        "job": "Follow and change jobs: ls, status, logs, events, cancel, delete, resubmit, retry.",
        "job checkpoints": "List, find and download the checkpoints on a volume of a cluster.",
        "image lint": "Check a Dockerfile for known conflicts.",
        "image build": "Build an image in CodeBuild or here.",
        "image check": "Check that an image can train.",
        "image push": "Push an image to ECR.",
        "network": "Judge the network that a run used, by NCCL's logs.",
        "network measure": "Measure the bandwidth between processes.",
        "lint-environment": "Find mistakes in the NCCL, EFA and torch variables of files.",
    },
}
# Families of commands, which have one line in the list of all; `trainyard store --help` lists its own.
FAMILIES = {
    "init": "Set up a program, a repository on GitHub, or an account in AWS",
    "config": "Show or check the configuration",
    "store": "Keep runs in a store",
    "image": "Make images to train in",
}
# What workflows and pods call; not listed.
INTERNAL = (
    "pod",
    "step action",
    "step check-release",
    "step continue",
    "step environment",
    "step fetch-checkpoint",
    "step notify",
    "step notify-image",
    "step plan",
    "step ray",
    "step wait",
    "step watch-runners",
)
COMMANDS = (*(name for group in GROUPS.values() for name in group), *INTERNAL)
_HELP = ("", "help", "-h", "--help")


def module_name(name: str) -> str:
    """Return the name of a command's module in this package."""
    return name.replace(" ", "_").replace("-", "_")


def main(argv: Sequence[str] | None = None) -> int:
    """Run `trainyard COMMAND …`, and return the exit code of the process."""
    return exit_code_of(lambda: run_command(list(sys.argv[1:] if argv is None else argv)))


def run_command(words: Sequence[str]) -> int:
    """Run the command that `words` begin with, and return its exit code. Without one, print the list."""
    first = words[0] if words else ""
    if first in _HELP:
        if words[1:] and words[1] not in _HELP:  # `help store sync` is `store sync --help`
            return run_command([*words[1:], "--help"])
        sys.stdout.write(command_list({title: one_line_each(names) for title, names in GROUPS.items()}))
        return ExitCode.DONE if words else ExitCode.USAGE
    if first in ("version", "--version"):
        sys.stdout.write(f"trainyard {__version__}\n")
        return ExitCode.DONE
    for count in (2, 1):
        name = " ".join(words[:count])
        if name in COMMANDS:
            sys.argv = [f"trainyard {name}", *words[count:]]  # usage lines name the command
            return int(import_module(f"{__name__}.{module_name(name)}").main())
    if words[1:2] in (["-h"], ["--help"]) and (group := names_in(first)):
        found = {name: text for names in GROUPS.values() for name, text in names.items() if name in group}
        sys.stdout.write(command_list({f"trainyard {first}": found}))
        return ExitCode.DONE
    raise ConfigError(explain_unknown(words))


def names_in(group: str) -> list[str]:
    """Return the listed commands of a group, such as `store`."""
    return [name for name in COMMANDS if name.startswith(f"{group} ") and name not in INTERNAL]


def explain_unknown(words: Sequence[str]) -> str:
    """Return the error for words that begin with no command: the nearest ones, and where the list is."""
    if group := names_in(words[0]):
        near = get_close_matches(" ".join(words[:2]), group, 1)
        meant = f" Did you mean trainyard {near[0]}?" if near and len(words) > 1 else ""
        return (
            f"trainyard {visible_line(words[0])} is one of: {', '.join(group)}.{meant} See trainyard --help."
        )
    near = get_close_matches(" ".join(words[:2]), COMMANDS, 1) or get_close_matches(words[0], COMMANDS, 1)
    meant = f" Did you mean trainyard {near[0]}?" if near else ""
    return f"trainyard has no command {visible_line(words[0])[:60]!r}.{meant} See trainyard --help."


def one_line_each(names: Mapping[str, str]) -> dict[str, str]:
    """Return a group with one line for each family instead of one for each of its commands."""
    lines: dict[str, str] = {}
    for name, text in names.items():
        family, _, rest = name.partition(" ")
        if family in FAMILIES:
            before = lines.get(family, f"{FAMILIES[family]}:").removesuffix(".")
            lines[family] = f"{before}{',' if family in lines else ''} {rest}."
        else:
            lines[name] = text
    return lines


def command_list(groups: Mapping[str, Mapping[str, str]]) -> str:
    """Return the help text: each group's title, and its commands, for the terminal's width."""
    indent = max(len(name) for names in groups.values() for name in names) + 4
    columns = max(shutil.get_terminal_size().columns - 1, 2 * indent)
    lines = ["usage: trainyard COMMAND [options]; trainyard help COMMAND explains one"]
    for title, names in groups.items():
        lines += ["", f"{title}:"]
        for name, text in names.items():
            line = f"  {name:<{indent - 2}}{text}"
            lines.append(textwrap.fill(line, columns, subsequent_indent=" " * indent))
    return "\n".join([*lines, ""])
