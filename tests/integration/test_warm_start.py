"""A warm process is like one that Python starts: each fact and each end, compared with a cold start."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests import warm_start

FACTS = """
import json, os, random, signal, sys
facts = {
    "words": sys.argv, "name": __name__, "folder": os.getcwd(), "path": sys.path[0],
    "variable": os.environ.get("OF_THE_TEST"), "gone": os.environ.get("HOME"),
    "leads its session": os.getsid(0) == os.getpid(), "input": sys.stdin.read(),
    "signals": [str(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)],
    "main": sys.modules["__main__"].__dict__.get("facts") is not None,
}
print(json.dumps(facts))
print("said to people", file=sys.stderr)
"""
IS_WARM = 'import os, sys; print(os.environ.get("TRAINYARD_TEST_WARM_START") is not None)'
ENDS = {
    "its last line": "print('done')",
    "a code": "raise SystemExit(75)",
    "a text": "import sys; sys.exit('refused: no such file')",
    "an error": "import json; json.loads('{')",
    "at once": "import os; os._exit(4)",
    "a function at the end": "import atexit; atexit.register(print, 'ended'); raise SystemExit(3)",
    "a thread": "import threading, time; threading.Thread(target=lambda: print(time.sleep(0.2))).start()",
    "a kill": "import os; os.kill(os.getpid(), 9)",
    "a signal": "import os; os.kill(os.getpid(), 15)",
    "an abort": "import os; os.abort()",
}
STARTS: tuple[type["subprocess.Popen[str]"], ...] = (subprocess.Popen, warm_start.Popen)


def ended(start: type["subprocess.Popen[str]"], line: list[str], **options: Any) -> tuple[int, str, str]:
    """Exit code, output, and the last line of the errors."""
    pipe = subprocess.PIPE
    options.setdefault("stderr", pipe)
    with start(line, stdin=pipe, stdout=pipe, text=True, **options) as process:
        output, errors = process.communicate("from the test", timeout=120)
    return process.returncode, output, (errors or "").strip().rpartition("\n")[2]


def program(folder: Path, text: str, name: str = "program.py") -> list[str]:
    (folder / name).write_text(text)
    return [sys.executable, str(folder / name)]


@pytest.mark.parametrize("options", [{}, {"start_new_session": True}, {"stderr": subprocess.STDOUT}])
def test_a_script_finds_the_same_facts(options: dict[str, Any], tmp_path: Path) -> None:
    line = [*program(tmp_path, FACTS), "--step", "3"]
    environment = {**os.environ, "OF_THE_TEST": "ü"}
    del environment["HOME"]
    cold, warm = (ended(start, line, cwd=tmp_path, env=environment, **options) for start in STARTS)
    assert warm == cold
    assert cold[0] == 0


@pytest.mark.parametrize("text", ENDS.values(), ids=ENDS)
def test_a_script_ends_in_the_same_way(text: str, tmp_path: Path) -> None:
    cold, warm = (ended(start, program(tmp_path, text)) for start in STARTS)
    assert warm == cold


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_a_signal_reaches_it_and_waiting_has_a_limit(number: signal.Signals, tmp_path: Path) -> None:
    line = program(tmp_path, "import time; print('here', flush=True); time.sleep(100)")
    with warm_start.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"here\n"
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.1)
        process.send_signal(number)
        code = process.wait(60)
    assert code == (1 if number == signal.SIGINT else -number)
    assert process.poll() == code


def test_what_it_starts_is_warm_and_is_found_among_its_descendants(tmp_path: Path) -> None:
    inner = program(tmp_path, IS_WARM + "\nimport time; time.sleep(100)", "inner.py")
    text = f"import os, subprocess; subprocess.run({inner!r}, env={{**os.environ, 'RANK': '7'}})"
    with warm_start.Popen(program(tmp_path, text, "outer.py"), stdout=subprocess.PIPE, text=True) as outer:
        assert outer.stdout is not None
        assert outer.stdout.readline() == "True\n"
        (child,) = warm_start.descendants(outer.pid)
        assert warm_start.environment_of(child)["RANK"] == "7"
        outer.kill()
        os.kill(child, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while warm_start.environment_of(child) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert warm_start.environment_of(child) == {}


def test_folders_of_pythonpath_and_their_customization_count(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import os; os.environ['CUSTOMIZED'] = 'yes'")
    (tmp_path / "beside.py").write_text("word = 'found'")
    (tmp_path / "scripts").mkdir()
    line = program(tmp_path / "scripts", "import os, beside; print(os.environ['CUSTOMIZED'], beside.word)")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    for start in STARTS:
        assert ended(start, line, env=environment)[:2] == (0, "yes found\n")


@pytest.mark.parametrize(
    ("variables", "is_warm"), [({"PYTHONHASHSEED": "3"}, False), ({"OMP_NUM_THREADS": "1"}, True), ({}, True)]
)
def test_variables_that_python_reads_as_it_starts_make_a_usual_start(
    variables: dict[str, str], is_warm: bool, tmp_path: Path
) -> None:
    line = program(tmp_path, IS_WARM)
    assert ended(warm_start.Popen, line, env={**os.environ, **variables})[1] == f"{is_warm}\n"
