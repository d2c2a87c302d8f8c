"""With `--json` a failure is a JSON object too, for every command that has the option."""

import json
import sys

import pytest
from tests.cases import each_case
from tests.integration.planted.yard import script
from tests.scripts.command_lines.options import SCRIPTS, options_of

from trainyard.command.handler import exit_code_of
from trainyard.errors import CheckFailedError, ConfigError, ExitCode, ServiceError

pytestmark = pytest.mark.process
WITH_JSON = [name for name in SCRIPTS if any(option.name == "json" for option in options_of(name))]

ASKED: tuple[list[str], ...] = (["--json"], ["--format", "json"], ["--format=json"], [], ["--", "--json"])


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
