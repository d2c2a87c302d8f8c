"""The pictures of the README: of a real command on a real terminal, and of a report in a real browser."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests import warm_start

ROOT = Path(__file__).resolve().parents[2]
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
needs_browser = pytest.mark.skipif(
    not any(map(shutil.which, BROWSERS)), reason="Chromium is not installed (apt-get install chromium)"
)


def draw(*words: str, path: str | None = None) -> "subprocess.CompletedProcess[str]":
    line = [sys.executable, str(ROOT / "tools" / "draw_pictures.py"), *words]
    environment = {**os.environ, "PATH": path or os.environ["PATH"]}
    return warm_start.run(line, timeout=240, env=environment)


@pytest.fixture
def report(tmp_path: Path) -> Path:
    page = tmp_path / "runs" / "a run" / "report" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text("<h1>proven</h1>")
    return page


@pytest.fixture
def browser(tmp_path: Path) -> str:
    """A PATH whose browser is a program that ends with 1."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "chromium").write_text("#!/bin/sh\necho 'no display' >&2\nexit 1\n")
    (folder / "chromium").chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


@needs_browser
def test_a_command_and_its_report_become_pictures(tmp_path: Path, report: Path) -> None:
    done = draw("--to", f"{tmp_path}/pictures", "--runs", f"{tmp_path}/runs", "echo", "trained and proven")
    assert done.returncode == 0, done.stderr
    svg = (tmp_path / "pictures" / "terminal.svg").read_text()
    assert "trained" in svg
    assert "$" in svg
    png = (tmp_path / "pictures" / "report.png").read_bytes()
    assert png.startswith(b"\x89PNG")
    assert (int.from_bytes(png[16:20]), int.from_bytes(png[20:24])) == (1200, 1080)


def test_nothing_is_drawn_of_a_command_that_failed(tmp_path: Path, browser: str) -> None:
    done = draw("--to", f"{tmp_path}/pictures", "sh", "--", "-c", "echo not proven; exit 1", path=browser)
    assert done.returncode == 1
    assert "not proven" in done.stderr
    assert "exit code 1" in done.stderr
    assert list((tmp_path / "pictures").iterdir()) == []


def test_a_command_that_does_not_end_is_said(tmp_path: Path, browser: str) -> None:
    done = draw("--to", f"{tmp_path}/pictures", "--seconds", "1s", "sleep", "60", path=browser)
    assert done.returncode == 5
    assert "longer than 1 s" in done.stderr


def test_a_browser_that_fails_is_named(tmp_path: Path, report: Path, browser: str) -> None:
    done = draw("--to", f"{tmp_path}/p", "--runs", f"{tmp_path}/runs", "true", path=browser)
    assert done.returncode == 1
    assert "no display" in done.stderr
    assert "index.html" in done.stderr


def test_a_command_without_a_run_is_said(tmp_path: Path, browser: str) -> None:
    done = draw("--to", f"{tmp_path}/p", "--runs", f"{tmp_path}/nowhere", "true", path=browser)
    assert done.returncode == 1
    assert "no report" in done.stderr


def test_without_a_browser_nothing_is_started(tmp_path: Path) -> None:
    done = draw("--to", f"{tmp_path}/p", "touch", f"{tmp_path}/started", path=f"{tmp_path}")
    assert done.returncode == 2
    assert "apt-get install chromium" in done.stderr
    assert not (tmp_path / "started").exists()


def test_a_dry_run_says_what_it_would_do(tmp_path: Path) -> None:
    done = draw("--dry-run", "--to", f"{tmp_path}/p")
    assert done.returncode == 0
    assert done.stdout == f"make train → {tmp_path}/p/terminal.svg, {tmp_path}/p/report.png\n"
    assert not (tmp_path / "p").exists()
