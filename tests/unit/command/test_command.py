"""The common parts of scripts: exit codes, durations, the age of a CI job, one line per phase."""

import io
import os
import re
import subprocess
import sys
import time
from typing import Any

import pytest
from tests.cases import each_case

from trainyard import errors
from trainyard.command import output
from trainyard.command.handler import exit_code_of
from trainyard.command.time_limits import job_seconds
from trainyard.errors import ConfigError, TrainyardError

FRAME = """
import sys
from trainyard import errors
from trainyard.command import arguments, handler, output, parser, signals, time_limits
def main():
    {body}
sys.exit(handler.exit_code_of(main))
"""
LARGE = "sys.stdout.write('x' * 1_000_000)"


def program(body: str) -> list[str]:
    return [sys.executable, "-c", FRAME.format(body=body)]


def run(body: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run as a process whose output is buffered, as it is wherever PYTHONUNBUFFERED is not set."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    settings: dict[str, Any] = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "env": environment,
    } | options
    done: subprocess.CompletedProcess[str] = subprocess.run(program(body), text=True, timeout=240, **settings)
    return done


def pipe_to_nobody(body: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run with a stdout whose reader has gone before anything is written."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        return run(body, stdout=writer, **options)
    finally:
        os.close(writer)


def test_a_job_has_run_since_its_recorded_start_which_may_not_be_in_the_future() -> None:
    def seconds(started: float) -> float:
        return job_seconds({"TRAINYARD_JOB_STARTED": str(started)})

    assert 60 <= seconds(int(time.time()) - 60) < 120
    assert seconds(time.time() + 3600) == job_seconds({}) == job_seconds({"TRAINYARD_JOB_STARTED": ""}) == 0


@each_case("started", ["yesterday", "-5", "inf", "1e9", "1700000000 "])
def test_what_is_no_time_is_refused_by_name(started: str) -> None:
    with pytest.raises(ConfigError, match=r"TRAINYARD_JOB_STARTED: .* date \+%s"):
        job_seconds({"TRAINYARD_JOB_STARTED": started})


CODES = {
    TrainyardError: 1,
    errors.ConfigError: 2,
    errors.DataError: 2,
    errors.IncompatibleCheckpointError: 2,
    errors.CheckFailedError: 1,
    errors.TrainingFailedError: 1,
    errors.CostLimitError: 1,
    errors.NetworkFallbackError: 6,
    errors.DamagedFileError: 1,
    errors.CheckpointError: 1,
    errors.RecordError: 1,
    errors.VerificationError: 1,
    errors.ObjectChangedError: 1,
    errors.RunConflictError: 1,
    errors.NumberTakenError: 2,
    errors.AttemptEndedError: 1,
    errors.ServiceError: 4,
    errors.UnsupportedOperationError: 4,
    errors.CredentialsRefusedError: 4,
    errors.ServiceTroubleError: 4,
    errors.PermissionRefusedError: 4,
    errors.WaitTimeoutError: 5,
    errors.StoppedError: 75,
    errors.InterruptedRunError: 130,
}


def test_every_class_of_error_has_its_exit_code_on_record_here() -> None:
    classes = {
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, TrainyardError)
    }
    assert classes == CODES.keys()


@each_case(("kind", "code"), CODES.items(), ids=lambda value: getattr(value, "__name__", None))
def test_an_error_ends_with_its_code_and_its_message_alone(
    kind: type[TrainyardError], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def main() -> int:
        raise kind("runs/a: what happened; what to do")

    assert exit_code_of(main) == code
    assert capsys.readouterr() == ("", "runs/a: what happened; what to do\n")


@pytest.mark.parametrize(
    ("body", "variables"),
    [(f"{LARGE}; return 0", {}), ("print('x'); return 0", {"PYTHONUNBUFFERED": "1"})],
    ids=["large", "unbuffered"],
)
def test_a_main_that_was_cut_short_by_its_reader_is_not_done(body: str, variables: dict[str, str]) -> None:
    done = pipe_to_nobody(body, env=os.environ | variables)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith("Interrupted: ")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("raise errors.ConfigError('wrong')", 2),
        ("return {}['step']", 3),
        ("return parser.script_parser('Does nothing.').parse_args(['--help'])", 0),
        ("return parser.script_parser('Does nothing.').parse_args(['--log-level', 'loud'])", 2),
    ],
    ids=["refusal", "bug", "help", "wrong usage"],
)
def test_a_code_holds_when_nobody_reads_the_message(body: str, code: int) -> None:
    assert pipe_to_nobody(body, stderr=subprocess.STDOUT).returncode == code


class Terminal(io.StringIO):
    """A stderr that people watch."""

    def isatty(self) -> bool:
        return True


@each_case(
    ("status", "variables", "shown"),
    [
        ("ok", {}, f"  stored        {'5 of 5':<60} \x1b[32mok\x1b[0m"),
        ("failed", {}, f"  stored        {'5 of 5':<56} \x1b[31mfailed\x1b[0m"),
        ("failed", {"NO_COLOR": "1"}, f"  stored        {'5 of 5':<56} failed"),
        ("", {}, "  stored        5 of 5"),
    ],
)
def test_a_terminal_gets_an_aligned_line_with_a_coloured_verdict(
    status: str, variables: dict[str, str], shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"CI": "", "NO_COLOR": "", "TERM": "xterm", "COLUMNS": "80", **variables}.items():
        monkeypatch.setenv(name, value)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", there := Terminal())
        output.announce("stored", "5 of 5", status)
    assert there.getvalue() == f"{shown}\n"


def test_a_log_gets_plain_lines_with_aligned_levels_and_without_colours() -> None:
    body = "output.configure_logging('debug'); output.announce('stored', '5 of 5', 'ok')"
    log = "log = handler._logger; log.debug('a'); log.warning('a'); log.error('a'); log.critical('a')"
    done = run(f"{body}; {log}; return 0")
    lines = done.stderr.splitlines()
    assert re.fullmatch(r"\d\d:\d\d:\d\d INFO  stored: 5 of 5 \[ok\]", lines[0])
    assert [line[9:] for line in lines[1:]] == ["DEBUG a", "WARN  a", "ERROR a", "FATAL a"]
    assert done.stdout == ""


SAY = "import sys; from trainyard.command import handler, output; sys.exit(handler.exit_code_of(lambda: {}))"


@pytest.mark.parametrize("closed", ["1>&-", "0<&- 1>&- 2>&-"])
def test_the_answer_holds_with_streams_that_were_closed(closed: str) -> None:
    program = SAY.format("output.announce('a', '→') or print('×') or sys.stderr.write('x') and 1")
    done = subprocess.run(
        ["/bin/sh", "-c", f'exec "{sys.executable}" -c "$0" {closed}', program],
        capture_output=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_the_answer_holds_where_a_character_cannot_be_written(encoding: str) -> None:
    program = SAY.format("print('→ × \\udcff') or 1")
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=False, env=environment, timeout=60
    )
    assert done.returncode == 1, done.stderr
    assert done.stderr == b""
