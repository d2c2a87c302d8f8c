"""The site of docs/: it builds strictly, loads nothing from other servers, and its links lead somewhere."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cases import each_case

ROOT = Path(__file__).resolve().parents[2]
REPOSITORY = "https://example.com/owner/repository"
ASSET = re.compile(r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=[\"']?(https?:[^\"' >]+)")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = os.environ | {"SITE_REPOSITORY": REPOSITORY, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.process
def test_every_page_is_there_and_loads_nothing_from_other_servers(site: Path) -> None:
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    built = {path.relative_to(site): path.read_text(encoding="utf-8") for path in site.rglob("*.html")}
    assert pages <= built.keys()
    assert {str(name): found for name, text in built.items() if (found := ASSET.findall(text))} == {}


@pytest.mark.process
def test_links_out_of_the_documents_lead_to_the_repository(site: Path) -> None:
    text = (site / "index.html").read_text(encoding="utf-8")
    assert f'href="{REPOSITORY}/blob/main/CONTRIBUTING.md"' in text
    assert 'href="quick_start.html"' in text
    assert "OWNER/REPOSITORY/blob" not in text


@each_case("path", sorted((ROOT / "docs").rglob("*.md")), ids=lambda path: path.name)
def test_code_in_a_list_does_not_end_the_list(path: Path) -> None:
    """The site's Markdown wants four spaces where GitHub takes three; with fewer the numbers start again."""
    lines = path.read_text(encoding="utf-8").splitlines()
    assert [number for number, line in enumerate(lines, 1) if re.match(r" {1,3}```", line)] == []
