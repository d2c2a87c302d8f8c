"""Check an image on three levels: the questions of each level, its locks, and the verdict on the answers.

    quick      the versions of the image's lock, its imports, torch, entry point, user, size
    standard   also CUDA, NCCL, the EFA plugin, a model's configuration, no secret in a layer
    full       also a forward and backward pass, a sum over two processes, and a compiled function

A requested check without an answer has failed. A check for which the image states nothing is unknown. A
warning is about something that is allowed, but that some clusters refuse. The locks of an image are the files
with the content that its labels name; one of the same name and another content is another lock.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.image.building.build_request import LOCKS_LABEL
from trainyard.image.conflict.stated_packages import PYTHONS, locked_packages
from trainyard.run.untrusted_files import read_text

if TYPE_CHECKING:
    from trainyard.gateways.images.local_builder import ImageFacts

MARK = "TRAINYARD-PROBE "
"""The prefix of every line that the probe prints for us."""
QUICK = ("user", "entry-point", "size", "versions", "imports", "torch")
STANDARD = (*QUICK, "secrets", "cuda", "nccl", "efa", "model-configuration")
FULL = (*STANDARD, "collective", "forward-backward", "compile")
LEVELS = {"quick": QUICK, "standard": STANDARD, "full": FULL}
IN_CONTAINER = tuple(name for name in FULL if name not in ("user", "entry-point", "size", "secrets"))


@dataclass(frozen=True)
class Answer:
    """The result of one check."""

    check: str
    ok: bool | None
    """None if it is not known what would be right."""
    says: str
    seconds: float = 0.0
    warns: bool = False
    """Whether a check that passed is shown as a warning."""


def probe_request(
    level: str, packages: Mapping[str, Mapping[str, str]] | None, **flags: bool
) -> dict[str, Any]:
    """Return the questions for the probe in the container; `flags`: cpu, efa, gpus and no_torch.

    `packages` is Python's version -> package -> version; None if the image has no known lock.
    """
    checks = [name for name in LEVELS[level] if name in IN_CONTAINER]
    return {"checks": checks, "packages": packages, "gpus": False, "no_torch": False, **flags}


def processor_of(architecture: str) -> str:
    """Return the processor of an image as wheels name it."""
    return "aarch64" if architecture == "arm64" else "x86_64"


def judge_declared(facts: "ImageFacts", *, most_bytes: int) -> list[Answer]:
    """Return the checks that need no container: user, entry point, size. Running as root is a warning."""
    size, starts = facts.size, " ".join((*facts.entrypoint, *facts.command))
    says = "the builder does not report its size"
    if size is not None:
        says = f"{size / 1e9:.2f} GB, at most {most_bytes / 1e9:g} GB"
    return [
        _judge_user(facts.user.partition(":")[0]),
        Answer("entry-point", bool(starts), starts or "neither ENTRYPOINT nor CMD is set"),
        Answer("size", size is not None and size <= most_bytes, says),
    ]


def _judge_user(user: str) -> Answer:
    how = f"runs as {user}" if user else "no USER is set, so it runs as root"
    # https://kubernetes.io/docs/concepts/security/pod-security-standards/
    refuses = ": the Pod Security level restricted refuses that" if user in ("", "root", "0") else ""
    return Answer("user", True, how + refuses, warns=bool(refuses))


def probe_answers(checks: Sequence[str], log: str, how_it_ended: str) -> list[Answer]:
    """Return the answers in the probe's output; a check without one has failed because of `how_it_ended`."""
    found = {}
    for line in log.splitlines():
        if not line.startswith(MARK):
            continue
        try:
            given = json.loads(line.removeprefix(MARK))
            ok = None if given["ok"] is None else given["ok"] is True
            answer = Answer(str(given["check"]), ok, str(given["says"]), float(given["seconds"]))
        except (ValueError, KeyError, TypeError):
            continue
        found[answer.check] = answer
    return [found.get(name) or Answer(name, False, f"no answer: {how_it_ended}") for name in checks]


def check_lines(image: str, level: str, answers: Sequence[Answer]) -> list[str]:
    """Return the answers for people, and the verdict."""
    words = {True: "ok  ", False: "FAIL", None: "?   "}
    marks = ["warn" if answer.ok and answer.warns else words[answer.ok] for answer in answers]
    lines = [f"  {one.check:<20}{mark}  {one.says}" for one, mark in zip(answers, marks, strict=True)]
    failed = [answer.check for answer in answers if answer.ok is False]
    unknown = [answer.check for answer in answers if answer.ok is None]
    verdict = f"no check failed; unknown: {', '.join(unknown)}" if unknown else "every check passed"
    if failed:
        verdict = f"{len(failed)} of {len(answers)} failed: {', '.join(failed)}"
    return [*lines, f"  {image}: {level}: {verdict}"]


def find_locks(labels: Mapping[str, str], folders: Sequence[Path]) -> tuple[dict[str, str], list[str]]:
    """Return name -> content of the locks that the labels name, and the names of those that are not found.

    A lock is found in the folders that have a file of that name and content.
    """
    texts: dict[str, str] = {}
    named = dict(one.partition("@")[::2] for one in labels.get(LOCKS_LABEL, "").split())
    for name, digest in named.items():
        for file in (folder / name for folder in folders if digest and name not in texts):
            text = read_text(file) if file.is_file() else ""
            texts |= {name: text} if hashlib.sha256(text.encode()).hexdigest() == digest else {}
    return texts, [name for name in named if name not in texts]


def demanded_packages(texts: Sequence[str], processor: str) -> dict[str, dict[str, str]]:
    """Return Python's version -> package -> version: the pins of the locks that apply to this processor."""
    found: dict[str, dict[str, str]] = {python: {} for python in PYTHONS}
    for python, packages in found.items():
        for text in texts:
            packages |= locked_packages(text, {"platform_machine": processor, "python_version": python})
    return found
