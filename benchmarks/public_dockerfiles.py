"""Lint the Dockerfiles of public repositories, and print a table: findings, what was not checked, seconds.

Each folder is a checkout, or a bare repository, which is unpacked. Findings on pins, users and EFA, which are
advice about what is stated, are left out; each other one has to be judged by a person.

    python benchmarks/public_dockerfiles.py --most 60 FOLDER…
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import date
from pathlib import Path

ADVICE = {"unpinned", "user", "efa-missing", "efa-latest"}


def dockerfiles(repository: Path, work: Path) -> Iterator[tuple[Path, Path]]:
    """Yield the root of a repository's files and each Dockerfile with a RUN in it."""
    root = repository
    if (repository / "HEAD").is_file():
        root = work / repository.parent.name
        root.mkdir()
        # A snapshot may lack its largest files: tar writes those that came before.
        archive = subprocess.run(
            ["git", "-C", repository, "archive", "HEAD", "--", ":!*.gif", ":!*.png", ":!*.jpg"],
            stdout=subprocess.PIPE,
            check=False,
        )
        subprocess.run(["tar", "-x", "-C", root], input=archive.stdout, check=False)
    for path in sorted(root.rglob("*ockerfile*")):
        if path.is_file() and "pip" in path.read_text(errors="replace"):
            yield root, path


def lint(root: Path, file: Path, words: list[str]) -> tuple[int, dict[str, object], float]:
    started = time.monotonic()
    command = [
        sys.executable,
        "-m",
        "trainyard",
        "image",
        "lint",
        "--json",
        "--dockerfile",
        file,
        "--context",
        root,
    ]
    done = subprocess.run([*command, *words], capture_output=True, text=True, cwd=root)
    found = (
        json.loads(done.stdout)
        if done.returncode in (0, 1)
        else {"findings": [], "not_checked": [done.stderr]}
    )
    return done.returncode, found, time.monotonic() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("repositories", nargs="+", type=Path)
    parser.add_argument("--most", type=int, default=60, help="most files; evenly over the repositories")
    parser.add_argument("--instance-type", default="")
    args = parser.parse_args()
    words = ["--instance-type", args.instance_type] if args.instance_type else []
    print(f"{date.today()}, uv's index, most {args.most} files\n")
    with tempfile.TemporaryDirectory() as folder:
        listed = [list(dockerfiles(one.resolve(), Path(folder))) for one in args.repositories]
        share = -(-args.most // len(listed))
        chosen = [pair for files in listed for pair in files[:share]][: args.most]
        for root, file in chosen:
            code, found, seconds = lint(root, file, words)
            findings = [one for one in found["findings"] if one["rule"] not in ADVICE]  # type: ignore[attr-defined]
            print(f"{code} {seconds:5.1f} s  {root.name}/{file.relative_to(root)}", flush=True)
            for one in findings:
                print(
                    f"      {one['severity']} {one['rule']}:{one['line']}: {one['what']} | {one['why'][:300]}"
                )
            if code not in (0, 1):
                print(f"      {found['not_checked']}")


if __name__ == "__main__":
    main()
