"""Each option of each script is given wrong and strange values; the answer follows from a rule.

The options come from the parsers and the values from their kinds, so a new option needs no test of its own.
"""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.planted.judging import HUNG, LIMIT_SECONDS, Answer, call
from tests.scripts.command_lines.grounds import GOOD, Grounds, lay_out, line_for
from tests.scripts.command_lines.options import SCRIPTS, Kind, Option, options_of
from tests.scripts.command_lines.values import RAW, Expected, Value, values_for

from trainyard.command.visible_text import visible_line
from trainyard.gateways.kubernetes import api_requests as kubernetes_api

MOST_SAID = 4000
"""Most characters of an answer that reports a failure: nobody reads more."""
ONLY_DRY = ("train", "run", "pod", "step_program")
"""Scripts that take seconds if nothing is wrong: only their dry run is called."""
OPTIONS = [
    option
    for name in SCRIPTS
    for option in options_of(name)
    if option.kind is not Kind.SWITCH and (option.name != "log_level" or name == SCRIPTS[0])
]
NOWHERE = {
    "AWS_ACCESS_KEY_ID": "nobody",
    "AWS_SECRET_ACCESS_KEY": "nothing",
    "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
    "AWS_MAX_ATTEMPTS": "1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_REGION": "us-east-1",
    "HF_HUB_OFFLINE": "1",
    "PATH": "",
}
"""Variables with which no program and no service can be reached."""


@pytest.fixture(scope="module")
def grounds(tmp_path_factory: pytest.TempPathFactory) -> Grounds:
    return lay_out(tmp_path_factory.mktemp("grounds"))


@pytest.fixture(scope="module")
def usual_answers() -> dict[tuple[str, ...], Answer]:
    """The answer of each script without the option under test, kept for all of its options."""
    return {}


@pytest.fixture(autouse=True)
def surroundings(grounds: Grounds, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run in the folder of the grounds, without any service; undo what a script changes in this process."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "GITHUB_", "SLACK_", "TRAINYARD_", "CI")):
            monkeypatch.delenv(name)
    for name, value in NOWHERE.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(kubernetes_api, "_sleep", lambda _pause, _wait: None)  # no cluster will ever answer
    monkeypatch.chdir(grounds.path)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for name in ("new", "odd", RAW):  # each test adds to them
        shutil.rmtree(grounds.path / name, ignore_errors=True)
    sys.unraisablehook = sys.__unraisablehook__
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: f"{option.script} {option.shown}")
def test_no_value_of_an_option_is_answered_by_a_bug_a_hang_or_riddles(
    grounds: Grounds, usual_answers: dict[tuple[str, ...], Answer], option: Option
) -> None:
    faults = []
    for first in ways(option):
        words = (option.script, *first)
        usual = usual_answers.get(words) or ask(grounds, option, first, None)
        usual_answers[words] = usual
        for value in chosen_values(option, grounds):
            if value.expected is Expected.REFUSED and first != ways(option)[0]:
                continue  # refused before --dry-run matters
            before = half_files(grounds.path)
            answer = ask(grounds, option, first, value.text)
            if value.expected is Expected.AS_USUAL:
                good = GOOD.get(option.name, GOOD["output"])(grounds)
                fault = strange(answer, ask(grounds, option, first, good))
            else:
                fault = wrong(option, value, answer, usual)
            if answer.code != 0 and not fault:
                left = half_files(grounds.path) - before
                fault = f"leaves {left}" if left else ""
            if fault:
                faults.append(f"{[*first, value.name]}: {fault}: {answer.code}: {answer.said[-300:]}")
    assert faults == []


def chosen_values(option: Option, grounds: Grounds) -> list[Value]:
    """All values for the first options of a kind, and a fourth of them, in turn, for the others.

    Options of a kind share their parser: a value that one of them answers wrongly is wrong in all.
    """
    alike = [other for other in OPTIONS if other.kind is option.kind]
    place = alike.index(option)
    values = list(values_for(option, grounds))
    return values if place < len(alike) // 8 else values[place % 4 :: 4]


def ways(option: Option) -> list[list[str]]:
    """Return the words before the option: --dry-run if the script has it; for a path also none."""
    is_dry = any(other.flag == "--dry-run" for other in options_of(option.script))
    if not is_dry:
        return [[]]
    both = option.kind is Kind.PATH and option.script not in ONLY_DRY
    return [["--dry-run"], []] if both else [["--dry-run"]]


def ask(grounds: Grounds, option: Option, first: list[str], text: str | None) -> Answer:
    tried = None if text is None else option
    words = [*first, *line_for(grounds, option.script, tried, text or "")]
    return call(option.script, *words, within=grounds.path)


def wrong(option: Option, value: Value, answer: Answer, usual: Answer) -> str:
    """Return the fault in the answer to a wrong value; empty if there is none."""
    if answer.code == HUNG:
        return f"still waits after {LIMIT_SECONDS} s"
    if answer.code not in (0, 1, 2, 4, 5) or "Traceback" in answer.said:
        return "a bug"
    if answer.code and len(answer.said) > MOST_SAID:
        return f"says {len(answer.said):,} letters"
    # A check may test the address itself, and report that it fails.
    refusals = (1, 2) if option.kind is Kind.ADDRESS else (2,)
    if value.expected is Expected.REFUSED and answer.code not in refusals:
        return "not refused"
    is_told = answer.code == 0 or (answer.code == usual.code and value.expected is Expected.ANSWERED)
    return "" if is_told or is_named(option, value.text, answer.said) else "names neither option nor value"


def is_named(option: Option, text: str, said: str) -> bool:
    """Whether the answer names the option, its value (quoted or shortened), or the file sought there."""
    if not text and (option.may_be_empty or "(empty)" in said):
        return True
    shown = visible_line(text)
    words = (option.shown.lstrip("-"), *(each[:20].strip() for each in (text, shown)), repr(text)[1:10])
    quoted = (shlex.quote(each)[:20] for each in (text, shown))
    return any(word and word in said for word in (*words, *quoted, "manifests/run-1-manifest"))


def strange(answer: Answer, plain: Answer) -> str:
    return "" if answer.code == plain.code else f"not as a plain value, which is answered by {plain.code}"


def half_files(path: Path) -> set[str]:
    """Return the files and folders whose names mark them as unfinished."""
    return {
        f"{folder}/{name}"
        for folder, folders, files in os.walk(path)
        for name in (*folders, *files)
        if name.startswith(".") or name.endswith(".tmp")
    }


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_option_says_by_its_type_or_its_metavar_what_it_takes(script: str) -> None:
    """Otherwise the test above would try it as plain text."""
    for option in options_of(script):
        metavar = str(option.action.metavar or "")
        if metavar in ("FILE", "DIR", "RUN_DIR", "LOCK"):
            assert option.kind is Kind.PATH or option.name == "workflow", option.shown
        if option.name in ("run_number", "num_nodes", "nproc_per_node", "seed", "call_seconds"):
            assert option.kind is Kind.NUMBER, option.shown
        if option.name == "store" and option.flag == "--store":
            assert option.kind is Kind.ADDRESS, option.shown
        if metavar in ("DURATION", "TIME"):
            assert option.kind is Kind.DURATION, option.shown
        assert option.action.type not in (int, float, Path), f"{option.shown}: take a type of arguments.py"


PROCESSES = (
    ("store_verify", "seed", "9" * 5000),
    ("store_sync", "call_seconds", "inf"),
    ("report", "runs", "caf\udce9"),
    ("config_show", "config", "loop"),
    ("prove", "run_dir", "a" * 300),
    ("step_records", "to", "/dev/null/x"),
    ("notify", "reason", "caf\udce9"),
    ("init_trust_policy", "output", "pipe"),
)


@pytest.mark.parametrize(("name", "wanted", "text"), PROCESSES, ids=lambda value: str(value)[:12])
def test_a_process_answers_as_the_call_does(grounds: Grounds, name: str, wanted: str, text: str) -> None:
    """In the C locale, where a terminal can show ASCII only."""
    for file in ("loop", "pipe"):
        (grounds.path / file).unlink(missing_ok=True)
    (grounds.path / "loop").symlink_to("loop")
    os.mkfifo(grounds.path / "pipe")
    option = next(option for option in options_of(name) if option.name == wanted)
    words = line_for(grounds, name, option, text)
    code = f"import sys; from trainyard.commands.{name} import main"
    code += "; from trainyard.command.handler import exit_code_of; sys.exit(exit_code_of(main))"
    line = [sys.executable, "-c", code, *words]
    environment = {**os.environ, "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    began = time.monotonic()
    done = subprocess.run(line, env=environment, capture_output=True, timeout=60, check=False)
    said = done.stderr.decode("ascii")
    assert done.returncode == 2, said
    assert "Traceback" not in said
    assert time.monotonic() - began < 30  # Python starts slowly on a busy machine; more is a hang
    assert is_named(option, text, said) or "\\udce9" in said
