#!/usr/bin/env python3
# ruff: noqa: E501 - a change is one line
"""Change one line of the store path at a time, and see whether its tests notice.

Each change weakens a rule of the manifest, the claims, the upload, the restore or the verification. The tests
run on a copy of the working tree, and end with their first failure. A change whose line is no longer in the code
is reported as such: write the one that has taken its place.

Reads:   the working tree; --only N (repeatable), --jobs N
Writes:  a temporary copy; a line a change on stdout
Exit codes: 0 all were noticed, 1 one was not
Example: benchmarks/mutations.py --only 3
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

HOUSE = Path(__file__).resolve().parent.parent
# Where a change is noticed first; a room that is not here has a folder of its own name.
TESTS = {
    "artifacts/record": [
        "artifacts/record",
        "artifacts/verify",
        "artifacts/upload/test_sync.py",
        "artifacts/restore",
    ],
    "artifacts/store": ["artifacts/upload", "artifacts/test_promotion.py"],
    "artifacts/promotion": ["artifacts/test_promotion.py", "artifacts/retention"],
    "gateways/s3": ["gateways/test_s3*.py"],
    "gateways/local_store": ["gateways/test_local_store.py"],
}
# File below src/trainyard, a text that is there once, what replaces it.
MUTATIONS = (
    ("artifacts/record/manifest.py", "if not key.startswith(prefix):", "if False:"),
    ("artifacts/record/manifest.py", "if records and (version is None or", "if records and (False and"),
    ("artifacts/record/manifest.py", "return version <= self.version", "return True"),
    ("artifacts/record/manifest.py", 'if not (chosen := ends or fitting):', 'if not (chosen := following):'),
    ("artifacts/record/manifest.py", "step is not None and step not in self._steps", "step is not None"),
    ("artifacts/record/chain.py", "if dict(manifest.supersedes) != expected:", "if False:"),
    ("artifacts/record/chain.py", "if owner is None or not owner.is_of(", "if owner and not owner.is_of("),
    ("artifacts/record/chain.py", "len(manifest.by_key()) != len(manifest.objects)", "False"),
    ("artifacts/record/checkpoints.py", "if manifest.step != checkpoint.step:", "if False:"),
    ("artifacts/record/run_numbers.py", "(self.run_id, self.key) == (run_id, key)", "self.run_id == run_id"),
    ("artifacts/record/run_numbers.py", "if had is not None and had.key != mine.key:", "if False:"),
    ("artifacts/record/run_numbers.py", "claim.number)) > claim.attempt:", "claim.number)) > claim.attempt + 1:"),
    ("artifacts/record/run_numbers.py", "if store.put_new(key, content, metadata={}):", "if False:"),
    ("artifacts/record/run_numbers.py", "and store.read_object(key) != content", "and False"),
    ("artifacts/record/contents.py", "sha256 == item.claimed.sha256:\n        return", "True:\n        return"),
    ("artifacts/record/contents.py", "or \"..\" in relative.parts", ""),
    ("artifacts/upload/upload.py", "        require_claimed(item, upload.sha256)\n", ""),
    ("artifacts/upload/upload.py", "known.sha256 != upload.sha256 and _is_final", "False and _is_final"),
    ("artifacts/upload/upload.py", "            if sha256 != upload.sha256:", "            if False:"),
    ("artifacts/upload/upload.py", "not (known.etag and known.etag == there.etag)", "False"),
    ("artifacts/upload/upload.py", "described is None or not described.has_requested_encryption", "described is None"),
    ("artifacts/upload/sync.py", "    require_newest(store, claim_in(contents.run, number))\n", ""),
    ("artifacts/store/object_store.py", "return store.read_object(key) == new", "return True"),
    ("artifacts/restore/restore.py", "return downloader.download(files) or downloader.download(last)",
     "return downloader.download(last) or downloader.download(files)"),
    ("artifacts/restore/restore.py", "        require_distinct(work, places)\n", ""),
    ("artifacts/restore/restore.py", "        _keep_only(work, places)\n        for folder", "        for folder"),
    ("artifacts/restore/download.py", "if size == entry.size and digest", "if digest"),
    ("artifacts/restore/download.py", "how = os.O_RDWR | os.O_NOFOLLOW", "how = os.O_RDWR"),
    ("artifacts/record/local_paths.py", 'part in ("", ".", "..")', 'part in ("", ".")'),
    ("artifacts/verify/verify.py", "key for key in listed - known.keys() - leftovers", "key for key in set()"),
    ("artifacts/verify/comparison.py", "if agrees is False:", "if False:"),
    ("artifacts/verify/comparison.py", "if sha256 != entry.sha256:", "if False:"),
    ("artifacts/retention/pruning.py", "if _is_listed(store, plan, each.checkpoint):", "if False:"),
    ("artifacts/retention/pruning_plan.py", "listed[key].modified < since[step]", "True"),
    ("artifacts/retention/retention_rules.py", "if names and rules.keep_promoted:", "if False:"),
    ("artifacts/promotion.py", "if not _is_held(store, moved):", "if False:"),
    ("gateways/local_store/folder.py", "path.read_bytes() != old", "False"),
    ("gateways/local_store/folder.py", "_identity(found) != upload.replaces", "False"),
    ("gateways/local_store/folder.py", "if hash_stored_file(target) != (upload.digest, upload.size):", "if False:"),
    ("gateways/s3/uploads.py", 'else {"IfNoneMatch": "*"}', "else {}"),
    ("gateways/s3/uploads.py", "found.size != size or (is_known", "(is_known"),
    ("gateways/s3/store.py", "if matches_checksum(content, stated):", "if True:"),
    ("gateways/s3/store.py", "if etag and found and found.strip", "if False and found.strip"),
    ("gateways/s3/bucket.py", "if code in _EXPIRED:\n                    self._renew", "if False:\n                    self._renew"),
)  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", type=int, action="append", help="the number of a change, from 1")
    parser.add_argument("--jobs", default="2", help="processes of pytest")
    args = parser.parse_args(argv)
    survived = 0
    with tempfile.TemporaryDirectory(prefix="mutations ") as name:
        copy = Path(name) / "trainyard"
        left_out = shutil.ignore_patterns(".git", ".venv", ".*_cache", "__pycache__")
        shutil.copytree(HOUSE, copy, ignore=left_out)
        for number, (file, old, new) in enumerate(MUTATIONS, 1):
            if args.only and number not in args.only:
                continue
            path = copy / "src" / "trainyard" / file
            source = path.read_text() if path.exists() else ""
            if source.count(old) != 1:
                print(f"{number:>2}  no longer applies  {file}: {old!r}", flush=True)
                continue
            path.write_text(source.replace(old, new))
            verdict = run_tests(copy, file, args.jobs)
            survived += verdict.startswith("SURVIVED")
            print(f"{number:>2}  {verdict}  {file}: {old!r}", flush=True)
            path.write_text(source)
    return min(survived, 1)


def run_tests(copy: Path, file: str, jobs: str) -> str:
    """Return whether the tests of the file's room fail in the copy, and the first that does."""
    room = next((room for room in TESTS if file.startswith(room)), str(Path(file).parent))
    tests = [str(path) for each in TESTS.get(room, [room]) for path in copy.glob(f"tests/unit/{each}")]
    line = [sys.executable, "-m", "pytest", "-q", "-x", "-n", jobs, "-p", "no:cacheprovider", *tests]
    environment = os.environ | {"PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(line, cwd=copy, env=environment, capture_output=True, text=True, check=False)
    failed = [each for each in done.stdout.splitlines() if each.startswith(("FAILED", "ERROR"))]
    if done.returncode and not failed:
        raise SystemExit(f"pytest ended with {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return f"noticed by {failed[0].partition('::')[2].partition(' - ')[0]}" if failed else "SURVIVED"


if __name__ == "__main__":
    sys.exit(main())
