"""The version of a release is the same everywhere, and its notes have a date."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from trainyard.errors import CheckFailedError, ConfigError
from trainyard.github.release import read_release

LATER, OLD = "## 1.3.0, unreleased\n\n- later\n\n", "## 1.1.0, 2026-01-01\n\n- old\n"
CHANGELOG = "# Changelog\n\n" + LATER + "## {}, {}\n\n- one\n- two\n\n" + OLD
Make = Callable[..., Path]


@pytest.fixture
def checkout(tmp_path: Path) -> Make:
    """A checkout with one version in all files, except in those that are given another one."""

    def make(
        project: str = "1.2.0", library: str = "1.2.0", changelog: str = "1.2.0", date: str = "2026-11-21"
    ) -> Path:
        (tmp_path / "src" / "trainyard").mkdir(parents=True)
        (tmp_path / "pyproject.toml").write_text(f'[project]\nversion = "{project}"\n')
        (tmp_path / "src/trainyard/__init__.py").write_text(f'"""."""\n\n__version__ = "{library}"\n')
        (tmp_path / "CHANGELOG.md").write_text(CHANGELOG.format(changelog, date))
        return tmp_path

    return make


def test_a_release_has_the_notes_of_its_own_section(checkout: Make) -> None:
    release = read_release(checkout(), "v1.2.0")
    assert (release.version, release.notes) == ("1.2.0", "- one\n- two")
    assert not release.is_preliminary


def test_the_tag_of_the_major_version_names_the_release_that_the_files_state(checkout: Make) -> None:
    root = checkout()
    release = read_release(root, "v1")
    assert (release.version, release.moving_tag) == ("1.2.0", "v1")
    with pytest.raises(CheckFailedError, match=r"pyproject\.toml says 1\.2\.0, the tag 2"):
        read_release(root, "v2")


def test_a_candidate_is_preliminary(checkout: Make) -> None:
    assert read_release(checkout("1.2.0rc1", "1.2.0rc1", "1.2.0rc1"), "v1.2.0rc1").is_preliminary


@pytest.mark.parametrize(
    ("places", "problem"),
    [
        ({"project": "1.1.9"}, "pyproject.toml says 1.1.9, the tag 1.2.0"),
        ({"library": "1.1.9"}, "src/trainyard/__init__.py says 1.1.9, the tag 1.2.0"),
        ({"changelog": "1.2.1"}, "CHANGELOG.md has no section 1.2.0"),
        ({"date": "unreleased"}, "CHANGELOG.md: 1.2.0 has no date such as 2026-11-21, but 'unreleased'"),
    ],
)
def test_files_of_differing_versions_are_named(checkout: Make, places: dict[str, str], problem: str) -> None:
    with pytest.raises(CheckFailedError) as caught:
        read_release(checkout(**places), "v1.2.0")
    assert str(caught.value) == f"{problem}\nNothing was released as v1.2.0."


def test_an_empty_section_of_the_changelog_is_refused(checkout: Make) -> None:
    root = checkout()
    (root / "CHANGELOG.md").write_text("## 1.2.0, 2026-11-21\n\n## 1.1.0, 2026-01-01\n\n- old\n")
    with pytest.raises(CheckFailedError, match=r"1\.2\.0 has no text"):
        read_release(root, "v1.2.0")


@pytest.mark.parametrize("tag", ["1.2.0", "v1.2", "v1.2.0-rc1", "v1.2.0; rm", "nightly", ""])
def test_an_invalid_tag_is_refused(checkout: Make, tag: str) -> None:
    with pytest.raises(ConfigError, match="is not the tag of a release"):
        read_release(checkout(), tag)


def test_a_missing_file_of_the_checkout_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"pyproject\.toml: missing"):
        read_release(tmp_path, "v1.2.0")


def test_documents_name_a_commit_until_there_is_a_release_and_the_quick_start_alone_main() -> None:
    """No tag v1 exists before the first release, so an example that names it does not run."""
    root = Path(__file__).parents[3]
    pages = [path for path in (root / "docs").rglob("*") if path.suffix in (".md", ".yml")]
    for path in (*pages, *(root / ".github" / "workflows").glob("*.yml")):
        refs = re.findall(r"OWNER/trainyard\S*@(\w+)|ref: (v\d|main)\b", path.read_text())
        found = {ref or other for ref, other in refs}
        assert found <= ({"main"} if path.name == "quick_start.md" else {"COMMIT"}), path
