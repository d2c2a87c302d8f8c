"""Write to GitHub Actions: step outputs, the job summary and annotations.

Outside Actions every function does nothing. It uses no API, only the files and the log of the running step.
"""

import os
import re
import secrets
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path

from trainyard.errors import TrainyardError

# https://docs.github.com/en/actions/reference/workflows-and-actions/workflow-commands
SUMMARY_BYTES = 1024 * 1024
_OUTPUT = re.compile(
    r"^(?P<name>[^\n<]+)<<(?P<end>value_[0-9a-f]{32})\n(?P<value>.*?)\n(?P=end)$", re.M | re.S
)
"""An output as `set_output` writes it."""
_SHOWN_PROBLEMS = 9
_PLACED = re.compile(r"(?P<file>[^\s:][^:]*\.ya?ml):(?P<line>[1-9]\d*): (?P<text>.+)")
_LEFT_OUT = "\n\n*The rest was omitted: a job summary ends at 1 MiB.*\n"


class Level(StrEnum):
    """The severity of an annotation."""

    NOTICE = "notice"
    WARNING = "warning"
    ERROR = "error"


def in_actions(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether this process runs in a workflow step."""
    return environment.get("GITHUB_ACTIONS") == "true"


def workflow_file(environment: Mapping[str, str] = os.environ) -> str:
    """Return the file name of the running workflow, from `OWNER/REPO/.github/workflows/FILE@REF`.

    In a called workflow it is that of its caller.
    """
    reference = environment.get("GITHUB_WORKFLOW_REF", "").partition("@")[0]
    return reference.rpartition("/")[2] or "training_ci.yml"


def set_output(name: str, value: str, environment: Mapping[str, str] = os.environ) -> None:
    """Set the step output `name`; any text is safe, also with several lines."""
    delimiter = f"value_{secrets.token_hex(16)}"
    _append(environment, "GITHUB_OUTPUT", f"{name}<<{delimiter}\n{value}\n{delimiter}\n")


def set_outputs(values: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> None:
    """Set several step outputs."""
    for name, value in values.items():
        set_output(name, value, environment)


def read_outputs(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the outputs that this step has set until now."""
    name = environment.get("GITHUB_OUTPUT")
    text = Path(name).read_text(encoding="utf-8") if name and Path(name).exists() else ""
    return {each["name"]: each["value"] for each in _OUTPUT.finditer(text)}


def mask_in_log(value: str) -> None:
    """Let GitHub replace a secret in the log of this job."""
    if in_actions() and value:
        command_runner(f"::add-mask::{_data(value)}")


def command_runner(line: str) -> None:
    """Give the runner a command, which it reads from the log."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


@contextmanager
def log_group(name: str) -> Iterator[None]:
    """Show what is printed in the meantime as a group in the log of the step."""
    command_runner(f"::group::{name}")
    try:
        yield
    finally:
        command_runner("::endgroup::")


def append_summary(markdown: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Append to the job summary; False outside Actions.

    Text beyond GitHub's limit is cut off at a line, because GitHub refuses a longer summary completely.
    """
    name = environment.get("GITHUB_STEP_SUMMARY")
    if not name:
        return False
    written = Path(name).stat().st_size if Path(name).exists() else 0
    _append(environment, "GITHUB_STEP_SUMMARY", _cut(markdown.rstrip("\n") + "\n", SUMMARY_BYTES - written))
    return True


def report_step(
    outputs: Mapping[str, str],
    summary: str = "",
    *,
    error: tuple[str, str] | None = None,
    environment: Mapping[str, str] = os.environ,
) -> None:
    """Set outputs, append to the job summary, and annotate `error` (its title and its text), all at once."""
    set_outputs(outputs, environment)
    if summary:
        append_summary(summary, environment)
    if error is not None:
        annotate(Level.ERROR, error[1], title=error[0], environment=environment)


def annotate(
    level: Level,
    message: str,
    *,
    title: str = "",
    place: tuple[str, int] | None = None,
    environment: Mapping[str, str] = os.environ,
) -> None:
    """Show `message` on the workflow run's page, at `place` (file and line) where there is one.

    It goes to stderr, because stdout is for data.
    """
    if not in_actions(environment):
        return
    file, line = place or ("", 0)
    values = {"file": file, "line": str(line or ""), "title": title}
    quoted = {key: _data(value).replace(":", "%3A").replace(",", "%2C") for key, value in values.items()}
    properties = ",".join(f"{name}={value}" for name, value in quoted.items() if value)
    sys.stderr.write(f"::{level}{' ' if properties else ''}{properties}::{_data(message)}\n")
    sys.stderr.flush()


def annotate_problems(text: str, environment: Mapping[str, str] = os.environ) -> None:
    """Show each line `FILE:LINE: problem` of `text` at its place, and all other lines together without one.

    GitHub shows ten errors per step, so at most nine lines get their own annotation.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    placed = [(match, line) for line in lines if (match := _PLACED.match(line))][:_SHOWN_PROBLEMS]
    for match, _ in placed:
        place = (match["file"], int(match["line"]))
        annotate(Level.ERROR, match["text"], place=place, environment=environment)
    rest = [line for line in lines if line not in {line for _, line in placed}]
    if rest and not (placed and len(rest) == 1):  # a single other line is the count of errors
        annotate(Level.ERROR, "\n".join(rest), environment=environment)


@contextmanager
def refusal_in_summary(title: str, environment: Mapping[str, str] = os.environ) -> Iterator[None]:
    """If the step ends with an error, show it under `title` in the job summary and as an annotation.

    Its first line becomes the step output `reason`, which the Slack message quotes. The error is re-raised.
    """
    try:
        yield
    except TrainyardError as error:
        text = str(error)
        append_summary(f"### ❌ {title}\n\n~~~~~~\n{text}\n~~~~~~\n", environment)
        set_output("reason", text.split("\n", 1)[0], environment)
        annotate(Level.ERROR, text, title=title, environment=environment)
        raise


def _append(environment: Mapping[str, str], variable: str, text: str) -> None:
    name = environment.get(variable)
    if not name:
        return
    try:
        with Path(name).open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise TrainyardError(f"{name} ({variable}) cannot be written: {error.strerror}") from None


def _cut(text: str, room: int) -> str:
    """`text` if it fits into `room` bytes, else its first lines and a note that the rest was omitted."""
    content = text.encode()
    if len(content) <= room:
        return text
    end = content.rfind(b"\n", 0, max(0, room - len(_LEFT_OUT.encode())))
    return "" if end < 0 else content[:end].decode() + _LEFT_OUT


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
