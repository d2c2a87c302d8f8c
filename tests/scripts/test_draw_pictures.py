"""The pictures of the README: of a real command on a real terminal, and of a report in a real browser."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from draw_pictures import screen_lines, terminal_svg
from tests import warm_start
from tests.scripts.conftest import ROOT

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
needs_browser = pytest.mark.skipif(
    not any(map(shutil.which, BROWSERS)), reason="Chromium is not installed (apt-get install chromium)"
)


def draw(*words: str, path: str | None = None) -> "subprocess.CompletedProcess[str]":
    line = [sys.executable, str(ROOT / "tools" / "draw_pictures.py"), *words]
    environment = {**os.environ, "PATH": path or os.environ["PATH"]}
    return warm_start.run(line, timeout=240, env=environment)


@needs_browser
def test_a_command_and_its_report_become_pictures(tmp_path: Path) -> None:
    page = tmp_path / "runs" / "a run" / "report" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text("<h1>proven</h1>")
    done = draw("--to", f"{tmp_path}/pictures", "--runs", f"{tmp_path}/runs", "echo", "trained and proven")
    assert done.returncode == 0, done.stderr
    svg = (tmp_path / "pictures" / "terminal.svg").read_text()
    assert "trained" in svg
    assert "$" in svg
    png = (tmp_path / "pictures" / "report.png").read_bytes()
    assert png.startswith(b"\x89PNG")
    assert (int.from_bytes(png[16:20]), int.from_bytes(png[20:24])) == (1200, 1080)


def test_the_screen_is_in_the_picture_as_it_was_at_the_end() -> None:
    redrawn = b"training 1/3\r\x1b[2Ktraining 2/3\r\x1b[2K  training   3 steps\r\nproven\r\n\r\n"
    assert [line.plain for line in screen_lines(redrawn, columns=40)] == ["  training   3 steps", "proven"]
    lines = [line.plain for line in screen_lines(b"x" * 45 + b"\r\n", columns=40)]
    assert lines == ["x" * 40, "x" * 5]
    svg = terminal_svg("<b> & 'quotes' ▕████▌   ▏\r\n".encode(), columns=40, title="t")
    texts = [node.text or "" for node in ElementTree.fromstring(svg).iter() if node.get("clip-path")]
    assert "".join(texts).replace("\xa0", " ").strip() == "<b> & 'quotes' ▕████▌   ▏"
    assert set(re.findall(r"\w+://[^\"')\s]+", svg)) == {"http://www.w3.org/2000/svg"}, "nothing is loaded"
