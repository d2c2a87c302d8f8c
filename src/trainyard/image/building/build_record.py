"""Describe a build for people and for CodeBuild: variables, source, keys, lines and records.

It starts nothing and reads nothing.
"""

import hashlib
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from trainyard.errors import ConfigError, DamagedFileError, VerificationError
from trainyard.image.building.build_poll import CompletedBuild
from trainyard.image.building.build_request import BuildRequest
from trainyard.run.untrusted_files import parse_json_object

FOREIGN = ".image-context"
"""The folder in the archive for a context that is not in this repository."""


def require_different_names(names: Sequence[str]) -> None:
    """Raise ConfigError when two images of one call have the same name."""
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(
            f"Two Dockerfiles would make the image {twice[0]}, because an image is named after its folder. "
            "Build one of them in a call of its own, with --image NAME."
        )


def plan_lines(plan: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the planned build, for people."""
    lines = []
    for one in plan:
        tree = " (with uncommitted changes)" if one["dirty"] else ""
        lines += [
            f"  {one['image']:<13} {one['dockerfile']} in {one['context']}, {one['platform']}",
            f"  {'':<13} {one['files']:,} files, {one['bytes'] / 1e6:.1f} MB, tag {one['tag']}",
            f"  {'':<13} commit {one['commit'][:7] or 'unknown'}{tree}",
        ]
        for base in one["unpinned"]:
            lines.append(f"  {'':<13} {base} is not pinned by digest, so every call builds this image")
    return [*lines, "Nothing was built."]


def build_variables(request: BuildRequest, *, context: str, cache: str) -> dict[str, str]:
    """Return the variables of the buildspec's task `image`."""
    arguments = shlex.join(f"{key}={value}" for key, value in request.build_args.items())
    return {
        "TASK": "image",
        "IMAGE": request.image,
        "CONTEXT": context,
        "DOCKERFILE": request.dockerfile,
        "BUILD_ARGS": arguments,
        "TARGET": request.target,
        "PLATFORM": request.platform,
        "CONTENT": request.digest,
        "COMMIT": "" if request.dirty else request.commit,
        **({"CACHE": cache} if cache else {}),
    }


def check_variables(image: str, level: str, flags: str) -> dict[str, str]:
    """Return the variables of the buildspec's task `check`."""
    return {"TASK": "check", "IMAGE_URI": image, "LEVEL": level, "CHECK_FLAGS": flags}


def source_names(request: BuildRequest, folder: str) -> dict[str, str]:
    """Return name in the archive -> name in the context, of its files, the Dockerfile and the ignore file.

    `folder` is the context's place in this repository; empty for one that is not in it. Raises ConfigError
    for a Dockerfile outside the context.
    """
    if PurePosixPath(request.dockerfile).is_absolute():
        raise ConfigError(
            f"{request.dockerfile} is not in the context {request.context}, so CodeBuild would not have "
            "it. Move it there, or use --builder local."
        )
    prefix = "" if folder == "." else f"{folder or FOREIGN}/"
    return {f"{prefix}{name}": name for name in (*request.names, request.dockerfile, *request.ignore_files)}


def same_digest(request: BuildRequest, ended: CompletedBuild, find: Callable[[str, str], str | None]) -> str:
    """Return the digest of the built image. Raises VerificationError unless build and registry agree on it.

    `find` returns the registry's digest for a tag or a digest; the other one is empty.
    """
    pushed = ended.state.exported.get("IMAGE_DIGEST", "")
    held = find("", pushed) if pushed else None
    if pushed and held == pushed:
        return pushed
    says = f"ECR holds {held or 'no image'} for the IMAGE_DIGEST {pushed}" if pushed else _NO_EXPORT
    raise _unproven(request.image, ended, says.format("IMAGE_DIGEST"))


_NO_EXPORT = "it exported no {}. The project must build with the buildspec.yml of this repository"


def _unproven(image: str, ended: CompletedBuild, says: str) -> VerificationError:
    state = ended.state
    return VerificationError(
        f"{image}: the build {state.build_id} succeeded, but {says}. {state.log_address}".rstrip()
    )


def exported_answers(
    ended: CompletedBuild, image: str, level: str, buildspec: bytes
) -> dict[str, bool | None]:
    """Return the answers of a build that checked `image` by this `buildspec`; None is not known.

    Raises VerificationError unless it exported the answers of this level, and none that failed.
    """
    try:
        found = parse_json_object(ended.state.exported.get("IMAGE_CHECK", ""), "IMAGE_CHECK")
    except DamagedFileError:
        found = {}
    if not found:
        raise _unproven(image, ended, _NO_EXPORT.format("IMAGE_CHECK"))
    asked = {"buildspec": hashlib.sha256(buildspec).hexdigest(), "image": image, "level": level}
    other = [f"another {name}, {found.get(name, 'none')}" for name in asked if found.get(name) != asked[name]]
    if other:
        raise _unproven(image, ended, f"it checked by {', '.join(other)}")
    answers = dict(found.get("answers") or {"any": False})
    failed = [name for name, ok in answers.items() if ok is not None and ok is not True]
    if failed:
        raise _unproven(image, ended, f"these checks failed: {', '.join(failed)}")
    return answers


def aws_result(
    request: BuildRequest, place: tuple[str, str], digest: str, ended: CompletedBuild | None
) -> dict[str, Any]:
    """Return the result as plain data; `place`: account and region; `ended`: None if nothing was built."""
    account, region = place
    host = f"{account}.dkr.ecr.{region}.amazonaws.com" + (".cn" if region.startswith("cn-") else "")
    found = {"uri": f"{host}/{request.image}@{digest}", "digest": digest, "built": ended is not None}
    if ended is not None:
        phases = {phase.name: phase.seconds or 0.0 for phase in ended.state.phases if phase.status}
        found |= {"build_id": ended.state.build_id, "attempts": ended.attempts, "phases": phases}
        found |= {"seconds": round(sum(phases.values()), 1), "log": ended.state.log_address}
    return request.record() | found


def result_lines(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the results for people."""
    lines = []
    for one in results:
        how = f"built in {_took(one)}" if one["built"] else "already in ECR, nothing was built"
        lines += [f"  {one['image']:<13} {how}", f"  {'':<13} {one['uri']}"]
    return lines


def result_markdown(results: Sequence[Mapping[str, Any]]) -> str:
    """Return the results for a job summary."""
    built = [one for one in results if one["built"]]
    title = "Built, checked and pushed" if built else "Nothing to build: this content is in the registry"
    rows = [
        f"| {one['image']} | `{one['digest'] or one['uri']}` | `{one['tag']}` | "
        f"{_took(one) if one['built'] else 'already there'} |"
        for one in results
    ]
    return "\n".join(
        [f"### ✅ {title}", "", "| image | digest | content | took |", "|---|---|---|---|", *rows, ""]
    )


def _took(result: Mapping[str, Any]) -> str:
    seconds = int(result.get("seconds", 0))
    return f"{seconds // 60}:{seconds % 60:02d}"
