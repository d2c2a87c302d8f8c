"""Rules of every command: shape, help, completion, one word for one thing, and JSON on failure."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from tests.cases import each_case
from tests.integration.planted.yard import script
from tests.scripts.command_lines.options import SCRIPTS, Kind, options_of
from tests.scripts.conftest import ROOT

from trainyard.command.handler import exit_code_of
from trainyard.commands import GROUPS, module_name, run_command
from trainyard.commands.completion import SHELLS
from trainyard.errors import CheckFailedError, ConfigError, ExitCode, ServiceError

SCRIPT_FILES = sorted((ROOT / "scripts").glob("*.py"))
TOOLS = sorted(path for path in (ROOT / "tools").glob("*.py") if path.stem != "generator")
COMMANDS = ROOT / "src" / "trainyard" / "commands"
SECTIONS = ("Reads:", "Writes:", "Exit codes:", "Example:")
SCRIPTS_AND_TOOLS = [*SCRIPT_FILES, *TOOLS]


def source(script: Path) -> str:
    """The text of the module whose `main` the script calls."""
    text = script.read_text()
    module = re.search(r"commands\.(\w+) import main", text)
    return text if module is None else (COMMANDS / f"{module[1]}.py").read_text()


def test_help_is_the_docstring_and_does_not_need_the_heavy_libraries() -> None:
    """test_house.py has the imports of each module, this one process what they add up to."""
    script = ROOT / "scripts" / "deploy_training_job.py"
    line = [sys.executable, "-X", "importtime", str(script), "--help"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=240, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    docstring = ast.get_docstring(ast.parse(source(script)))
    assert docstring is not None and docstring[:60] in done.stdout
    assert "--log-level" in done.stdout
    said = done.stderr.splitlines()
    assert [line for line in said if not line.startswith("import time:")] == []
    loaded = {line.rpartition("|")[2].strip() for line in said}
    assert "argparse" in loaded
    assert loaded & {"torch", "numpy", "rich", "boto3", "pyarrow"} == set()


@each_case("script", SCRIPTS_AND_TOOLS, ids=lambda path: path.stem)
def test_the_docstring_says_what_is_read_written_and_returned(script: Path) -> None:
    docstring = ast.get_docstring(ast.parse(source(script))) or ""
    starts = [line.strip() for line in docstring.splitlines()]
    missing = [section for section in SECTIONS if not any(line.startswith(section) for line in starts)]
    assert missing == []
    example = next(line for line in starts if line.startswith("Example:"))
    follows = " ".join([example, *starts[starts.index(example) + 1 :]])
    assert (f"tools/{script.name}" if script in TOOLS else "trainyard ") in follows


@each_case("script", SCRIPTS_AND_TOOLS, ids=lambda path: path.stem)
def test_it_is_an_executable_with_the_one_frame(script: Path) -> None:
    text = script.read_text()
    assert text.startswith("#!/usr/bin/env python3\n")
    assert os.access(script, os.X_OK)
    assert text.endswith("exit_code_of(main))\n")
    text = source(script)
    if "generator.run_generator" in text:  # the frame of the tools that write files
        return
    assert "def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:" in text
    assert "def main(argv: Sequence[str] | None = None) -> int:" in text


# shtab writes the scripts of zsh and fish from the same parser; its own tests run them.
BASH = shutil.which("bash") or ""
ASK = """
while IFS= read -r line; do
    read -r -a COMP_WORDS <<< "$line"
    case $line in *' ') COMP_WORDS+=('') ;; esac
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    COMPREPLY=()
    _shtab_trainyard
    echo "${COMPREPLY[*]}"
done
"""


@pytest.fixture
def completion(capsys: pytest.CaptureFixture[str]) -> str:
    assert run_command(["completion", "bash"]) == 0
    return capsys.readouterr().out


def complete(completion: str, folder: Path, *lines: str) -> list[list[str]]:
    """Return the words that bash offers at the end of each line."""
    words = [BASH, "--norc", "-c", f"{completion}\n{ASK}"]
    text = "".join(f"{line}\n" for line in lines)
    done = subprocess.run(words, input=text, capture_output=True, text=True, cwd=folder, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    return [line.split() for line in done.stdout.splitlines()]


@pytest.mark.skipif(not BASH, reason="bash is not installed")
def test_bash_completes_commands_options_and_choices(completion: str, tmp_path: Path) -> None:
    (tmp_path / "here.yaml").touch()
    found = complete(completion, tmp_path, *LINES)
    assert {line: sorted(words) for line, words in zip(LINES, found, strict=True)} == LINES


@pytest.mark.skipif(not BASH, reason="bash is not installed")
def test_every_option_of_every_command_is_offered(completion: str, tmp_path: Path) -> None:
    names = [name for group in GROUPS.values() for name in group]
    lines = {
        name: f"trainyard {name}{' list' if name == 'cluster' else ''} --" for name in names if name != "job"
    }
    found = complete(completion, tmp_path, *lines.values())
    for name, offered in zip(lines, found, strict=True):
        flags = {option.flag for option in options_of(module_name(name)) if option.flag.startswith("--")}
        assert flags - set(offered) == set(), name


LINES = {
    "trainyard im": ["image"],
    "trainyard image ": ["build", "check", "lint", "push"],
    "trainyard image bu": ["build"],
    "trainyard image build --le": ["--level"],
    "trainyard image build --context . --level ": ["full", "quick", "standard"],
    "trainyard cluster ca": ["capacity"],
    "trainyard cluster check --kind tr": ["trainjob"],
    "trainyard job status llama --wa": ["--wait"],
    "trainyard run --set a=b --conf": ["--config"],
    "trainyard job deploy --config ": ["here.yaml"],  # a file
    "trainyard skills install --for c": ["claude", "codex", "copilot", "cursor"],
}
"""Line -> the words that shells offer at its end, in a folder with one file."""


def test_every_shell_gets_a_script(capsys: pytest.CaptureFixture[str]) -> None:
    for shell in SHELLS:
        assert run_command(["completion", shell]) == 0
        assert "trainyard" in capsys.readouterr().out


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
    """`command/arguments.py` has the types; `test_usage_errors.py` gives them wrong values."""
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


WITH_JSON = [name for name in SCRIPTS if any(option.name == "json" for option in options_of(name))]

ASKED: tuple[list[str], ...] = (["--json"], ["--format", "json"], ["--format=json"], [], ["--", "--json"])


@pytest.mark.process
@each_case("name", WITH_JSON)
def test_a_failure_is_one_object_with_the_error_and_the_exit_code(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--json", "--no-such-option"])
    code = exit_code_of(lambda: script(name).main(sys.argv[1:]))
    output, errors = capsys.readouterr()
    found = json.loads(output)
    assert (found["schema_version"], found["exit_code"]) == (1, code) == (1, ExitCode.USAGE)
    assert found["error"].splitlines()[0][:40] in errors


def end(error: BaseException | None, code: ExitCode) -> ExitCode:
    if error is not None:
        raise error
    return code


@pytest.mark.process
@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize(
    "ending",
    [
        (ConfigError("a key is wrong"), ExitCode.USAGE),
        (CheckFailedError("it differs"), ExitCode.NO),
        (ServiceError("S3 refused"), ExitCode.REFUSED),
        (KeyboardInterrupt(), ExitCode.INTERRUPTED),
        (ValueError("a bug"), ExitCode.BUG),
        (None, ExitCode.TIMED_OUT),
    ],
    ids=str,
)
def test_an_error_is_printed_once(
    ending: tuple[BaseException | None, ExitCode],
    asked: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stdout = sys.stdout
    monkeypatch.setattr(sys, "argv", ["name", *asked])
    assert exit_code_of(lambda: exit_code_of(lambda: end(*ending))) == ending[1]
    assert sys.stdout is stdout
    output = capsys.readouterr().out
    if not asked or asked[0] == "--":
        assert output == ""
    else:
        found = json.loads(output)
        assert found["exit_code"] == ending[1]
        assert found["error"]


@pytest.mark.process
def test_a_command_that_has_answered_adds_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def main() -> int:
        sys.stdout.write('{"passed": false}')
        return 1

    monkeypatch.setattr(sys, "argv", ["name", "--json"])
    assert exit_code_of(main) == 1
    assert json.loads(capsys.readouterr().out) == {"passed": False}


def test_every_command_whose_data_people_read_has_the_option() -> None:
    assert len(WITH_JSON) >= 30
