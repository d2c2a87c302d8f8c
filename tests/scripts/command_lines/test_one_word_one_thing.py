"""One flag means one thing in every command, and one thing has one flag, as the design lists them."""

from collections import defaultdict
from pathlib import Path

from tests.cases import each_case
from tests.scripts.command_lines.options import SCRIPTS, Kind, options_of

TWO_MEANINGS = {
    "--context": "of a build (a folder), and of a kubeconfig, as docker and kubectl have it",
    "--fix": "repair what is found, and in a message how it is repaired",
    "--image": "a name to build, and a reference to use",
    "--labels": "of a runner, as a list and as GitHub's JSON",
    "--prometheus": "a workspace to query, and a file to write",
    "--python": "in an image, and in a pod",
    "--repository": "of images, and of code",
    "--resume": "fetch-checkpoint also takes the address of a manifest",
    "--run-dir": "run also takes newest",
    "--run-number": "only a new or known run can have the number auto",
    "--secret": "of Kubernetes, of GitHub, and of a build",
    "--segment": "its number, and with the number of all",
    "--checkpoint": "a path in a store, and one on this disk",
}
"""Flags whose value differs between commands, and why."""
OTHER_WORDS = {
    "--run-dir": ("--run-directory", "--rundir", "--directory-of-run", "--run"),
    "--run-number": ("--number", "--run-no", "--run-id-number"),
    "--num-nodes": ("--nodes", "--node-count", "--nnodes"),
    "--timeout": ("--max-wait", "--wait-seconds", "--timeout-seconds"),
    "--output": ("--out", "--output-file", "--outfile"),
    "--to": ("--target-dir", "--destination", "--dest", "--output-dir"),
    "--apply": ("--execute", "--do-it", "--confirm"),
    "--set": ("--override", "--overwrite", "--setting"),
    "--settings": ("--overrides",),
    "--every": ("--interval", "--poll", "--period"),
    "--fix": ("--remedy", "--mend", "--next-step"),
    "--idle-timeout": ("--silence",),
    "--config": ("--configuration", "--config-file", "--yaml"),
    "--store": ("--bucket", "--store-url", "--artifact-store"),
    "--json": ("--as-json", "--output-json"),
    "--dry-run": ("--dryrun", "--plan-only", "--simulate"),
    "--region": ("--aws-region",),
    "--instance-type": ("--instance", "--node-type", "--machine-type"),
}
"""Flag -> names that no command may use for the same thing."""


def test_a_flag_takes_the_same_kind_of_value_in_every_command() -> None:
    values: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name in SCRIPTS:
        for option in options_of(name):
            if option.flag and option.kind is not Kind.CHOICE:
                shown = "" if option.kind is Kind.SWITCH else str(option.action.metavar or "")
                values[option.flag][shown].append(name)
    differing = {flag: dict(found) for flag, found in values.items() if len(found) > 1}
    unexplained = {flag: found for flag, found in differing.items() if flag not in TWO_MEANINGS}
    assert unexplained == {}


@each_case("name", SCRIPTS)
def test_no_command_has_another_word_for_a_flag_of_the_design(name: str) -> None:
    flags = {word for option in options_of(name) for word in option.action.option_strings}
    assert not {other for others in OTHER_WORDS.values() for other in others} & flags


@each_case("name", SCRIPTS)
def test_each_value_has_a_name_in_the_help(name: str) -> None:
    for option in options_of(name):
        if option.flag in ("--run-dir", "--run-number", "--store", "--to", "--output", "--timeout", "--set"):
            assert option.action.metavar, option.flag


@each_case("name", SCRIPTS)
def test_every_option_has_the_type_of_its_value(name: str) -> None:
    """`command/arguments.py` has the types; `test_arguments.py` gives them wrong values."""
    for option in options_of(name):
        metavar = str(option.action.metavar or "")
        if metavar in ("FILE", "DIR", "RUN_DIR", "LOCK"):
            assert option.kind is Kind.PATH or option.name == "workflow", option.shown
        if option.name in ("run_number", "num_nodes", "nproc_per_node", "seed"):
            assert option.kind is Kind.NUMBER, option.shown
        if option.name == "store" and option.flag == "--store":
            assert option.kind is Kind.ADDRESS, option.shown
        if metavar in ("DURATION", "TIME"):
            assert option.kind is Kind.DURATION, option.shown
        assert option.action.type not in (int, float, Path), f"{option.shown}: take a type of arguments.py"
