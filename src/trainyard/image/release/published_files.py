"""Decide which files that look like secrets were published with a package, and so are no secrets of the user.

    files --RECORD--> their packages --index--> digests as published: the same, changed, or not checked

A package counts only if it came from an index (no direct_url.json) and the index has this file with this
digest: a wheel of one's own has a RECORD, too. Keys of Python's own tests are in facts/published_files.yaml.
"""

import csv
import fnmatch
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

from trainyard.errors import ConfigError
from trainyard.image.release.check_levels import Answer
from trainyard.image.version_facts import row_of

if TYPE_CHECKING:
    from trainyard.gateways.images.image_layers import FoundFile, LayerFiles

PublishedDigests = Callable[[str, str, str], Mapping[str, str] | str]
"""Returns path -> SHA-256 of a package's files as the index has it, by name, version and Python; empty if it
has no such package, a text if that is not known."""
_DISTRIBUTION = re.compile(r"(?P<folder>.*?)(?P<name>[^/]+)-(?P<version>[^/-]+)\.dist-info")
_PYTHON = re.compile(r"python(3\.\d+)/")
_TEST_KEY = re.compile(r"(?:^|/)python3\.\d+/test/(?:certdata/)?(?P<file>[^/]+)")
_MOST_NAMED = 5


def parse_allowed(words: Sequence[str]) -> dict[str, str]:
    """Parse `PATH=REASON` words. Raises ConfigError for one without a reason."""
    found = dict(word.partition("=")[::2] for word in words)
    for path, reason in found.items():
        if not path or not reason.strip():
            raise ConfigError(f"--allow {path[:80]!r}: write it as PATH=REASON; * stands for any characters")
    return {path.lstrip("/"): reason for path, reason in found.items()}


def judge_layers(read: "LayerFiles", published: PublishedDigests, allowed: Mapping[str, str]) -> Answer:
    """Return the check for secrets; `allowed` is a pattern of paths -> reason."""
    owners = dict(_owners(read))
    secrets, unchecked, known = list[str](), list[str](), dict[str, None]()
    digests_of = cache(published)
    for one in read.found:
        says = f"{one.path} ({one.kind}, layer {one.layer[:12]})"
        reason = next((why for path, why in allowed.items() if fnmatch.fnmatchcase(one.path, path)), "")
        owner, inside = owners.get(one.path, (("", "", ""), ""))
        if reason:
            known[f"{one.path} is allowed: {reason}"] = None
        elif _is_test_key(one):
            known["keys of Python's own tests"] = None
        elif not owner[0]:
            secrets.append(says)
        else:
            digests, package = digests_of(*owner), f"{owner[0]} {owner[1]}"
            if isinstance(digests, str):
                unchecked.append(f"{says} of {package}: {digests}")
            elif digests.get(inside) == one.sha256:
                known[f"as {package} was published"] = None
            elif not digests:
                secrets.append(f"{says} of {package}, which the index does not have")
            else:
                secrets.append(f"{says}, which {package} was not published with")
    if secrets:
        return Answer("secrets", False, _join(secrets))
    if unchecked:
        return Answer("secrets", None, f"not checked: {_join(unchecked)}")
    without = "no layer holds what looks like a secret"
    return Answer("secrets", True, f"{without} but {_join(list(known))}" if known else without)


def _owners(read: "LayerFiles") -> Iterator[tuple[str, tuple[tuple[str, str, str], str]]]:
    """Yield path -> the package (name, version, Python) that lists it, and its path in that package."""
    paths = {one.path for one in read.found}
    for folder, record in read.records.items() if paths else ():
        match = _DISTRIBUTION.fullmatch(folder)
        if not match or folder in read.of_a_url:
            continue
        python = _PYTHON.search(folder)
        owner = (match["name"].replace("_", "-").lower(), match["version"], python[1] if python else "")
        for row in csv.reader(record.splitlines()):
            path = posixpath.normpath(posixpath.join(match["folder"], row[0])) if row else ""
            if path in paths:
                yield path, (owner, row[0])


def _is_test_key(one: "FoundFile") -> bool:
    match = _TEST_KEY.search(one.path)
    row = row_of("published_files", key=match["file"]) if match else {}
    return one.sha256 in row.get("sha256", ())


def _join(words: Sequence[str]) -> str:
    more = f" and {len(words) - _MOST_NAMED} more" if len(words) > _MOST_NAMED else ""
    return "; ".join(words[:_MOST_NAMED]) + more
