"""tools/propose_changes.sh: the commit in a real repository, and what it asks of `gh`."""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "tools" / "propose_changes.sh"
GH = """\
#!/bin/sh
echo "$@" >>"$CALLS"
case "$1 $2" in
  "pr list") echo "$THERE" ;;
  "pr create") [ -z "$REFUSES" ] || exit 1; echo https://github.example/o/r/pull/57 ;;
esac
"""


def git(folder: Path, *words: str) -> str:
    line = ["git", "-c", "user.name=a", "-c", "user.email=a@b.example", *words]
    return subprocess.run(line, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.parametrize(
    ("there", "refuses", "code", "call"),
    [
        ("", "", 0, "pr create --head trainyard/locks --base main --title Move --body-file notes.md"),
        ("57", "", 0, "pr edit 57 --body-file notes.md"),
        ("", "yes", 4, "pr create --head trainyard/locks --base main --title Move --body-file notes.md"),
    ],
    ids=["new", "open", "refused"],
)
def test_the_newest_files_are_on_the_branch_of_one_pull_request(
    there: str, refuses: str, code: int, call: str, tmp_path: Path
) -> None:
    origin, work, bin_folder = tmp_path / "origin", tmp_path / "work", tmp_path / "bin"
    git(tmp_path, "init", "-q", "--bare", str(origin))
    git(tmp_path, "clone", "-q", str(origin), str(work))
    (work / "requirements-core.txt").write_text("a==1\n")
    git(work, "add", "-A")
    git(work, "commit", "-q", "-m", "Begin")
    git(work, "push", "-q", "origin", "HEAD:trainyard/locks")  # an older proposal
    bin_folder.mkdir()
    (bin_folder / "gh").write_text(GH)
    (bin_folder / "gh").chmod(0o755)
    files = {name: tmp_path / name for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY", "CALLS")}
    environment = os.environ | {"PATH": f"{bin_folder}:{os.environ['PATH']}", "GITHUB_REF_NAME": "main"}
    environment |= {"THERE": there, "REFUSES": refuses} | {name: str(path) for name, path in files.items()}
    for version in ("2", "3"):
        (work / "requirements-core.txt").write_text(f"a=={version}\n")
        (work / "notes.md").write_text(f"### Version {version}\n")
        line = [str(SCRIPT), "trainyard/locks", "Move", "notes.md", "requirements-core.txt"]
        done = subprocess.run(line, cwd=work, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
        assert call in files["CALLS"].read_text()
        assert git(origin, "show", "trainyard/locks:requirements-core.txt") == f"a=={version}"
        assert git(origin, "show", "-s", "--format=%s", "trainyard/locks") == "Move"
    assert git(origin, "ls-tree", "--name-only", "trainyard/locks") == "requirements-core.txt"
    if code:
        assert "Let Actions open pull requests" in done.stdout
    else:
        commit = git(origin, "rev-parse", "trainyard/locks")
        assert files["GITHUB_OUTPUT"].read_text().endswith(f"commit={commit}\npull_request=57\n")
        assert "workflow run ci.yml --ref trainyard/locks" in files["CALLS"].read_text()
