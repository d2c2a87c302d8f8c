"""Plan a build: from a folder and a Dockerfile to the request with its files, name and digest.

    listed files --ignore rules--> chosen --limits, secrets--> read --digest--> BuildRequest

The module that lists and reads files is passed in; nothing is changed.
"""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from trainyard.errors import ConfigError, VerificationError
from trainyard.image.building.build_request import COMMIT_ARGUMENT, BuildRequest, image_name, parse_build_args
from trainyard.image.context.build_context import content_digest, refuse_secrets, require_usable
from trainyard.image.context.context_secrets import secret_by_content
from trainyard.image.context.copied_files import locks_of, unsent_sources
from trainyard.image.context.dockerfile import Dockerfile, parse_dockerfile
from trainyard.image.context.ignore_rules import is_ignored, parse_ignore_file
from trainyard.image.context.image_names import parse_reference, require_repository
from trainyard.run.untrusted_files import read_text

if TYPE_CHECKING:
    from trainyard.gateways.images.context_files import FileOnDisk, HashedFile


_ARGUMENT_OF_FROM = re.compile(r"\$\{?(?P<name>[A-Za-z_]\w*)[^}\s]*\}?(?:\s|$)")


def plan_build(
    context: Path,
    dockerfile: Path,
    *,
    files: ModuleType,
    git: Mapping[str, Any],
    image: str,
    platform: str,
    target: str,
    build_args: Sequence[str],
    base_image: str,
    most_bytes: int,
) -> BuildRequest:
    """Return the request to build `dockerfile` in `context`; `git` has git's facts about its commit.

    `files` is the module `gateways.images.context_files`, which lists and reads files. An empty `image` is
    named after a folder; `base_image` is given to the argument of the last stage's FROM. Raises ConfigError
    for a context, Dockerfile or option that cannot be used.
    """
    listed: list[FileOnDisk] = files.list_files(context)
    name, text, ignore_file = files.find_dockerfile(context, dockerfile)
    known = parse_dockerfile(text, str(dockerfile))
    given = parse_build_args([*build_args, *_base_argument(base_image, known)], known.arguments)
    rules = parse_ignore_file(read_text(ignore_file), str(ignore_file)) if ignore_file else ()
    chosen = sorted((f for f in listed if not is_ignored(f.name, rules)), key=lambda f: f.name)
    require_usable(chosen, where=str(context), most_bytes=most_bytes)
    wanted = [(one.name, one.mode) for one in chosen]
    read: list[HashedFile] = files.hash_files(context, wanted, examine=secret_by_content)
    found = {one.name: one.secret for one in read if one.secret}
    if in_dockerfile := secret_by_content(text.encode()):  # it may be outside the context, or ignored
        found[name] = in_dockerfile
    refuse_secrets(found, where=str(context))
    parsed = parse_dockerfile(text, str(dockerfile), given).until(target)
    _require_sources(parsed, [one.name for one in chosen], context)
    inputs = {"dockerfile": text, "platform": platform, "target": target}
    inputs |= {f"arg {key}": value for key, value in given.items()}
    digests = {one.name: one.sha256 for one in read}
    return BuildRequest(
        image=require_repository(image or image_name(str(context.resolve()), name)),
        context=str(context),
        dockerfile=name,
        platform=platform,
        target=target,
        build_args=given,
        takes_commit=COMMIT_ARGUMENT in parsed.arguments,
        commit=str(git.get("commit", "")),
        dirty=bool(git.get("dirty", "commit" in git)),  # an unknown state counts as changed
        digest=content_digest(read, inputs),
        names=tuple(one.name for one in chosen),
        ignore_files=(os.path.relpath(ignore_file, context),) if ignore_file else (),
        total_bytes=sum(one.size for one in chosen),
        bases=tuple(stage.image for stage in parsed.bases),
        locks={lock: digests.get(lock, "") for lock in locks_of(parsed)},
        unpinned=tuple(stage.image for stage in parsed.unpinned),
    )


def _base_argument(image: str, parsed: Dockerfile) -> list[str]:
    """Return the build argument that makes `image` the base of the last stage; none for no image."""
    if not image:
        return []
    parse_reference(image)
    first = parsed.ancestors(len(parsed.stages) - 1)[0]
    written = next(i.text for i in parsed.instructions if i.name == "FROM" and i.stage == first.number)
    if argument := _ARGUMENT_OF_FROM.search(written):
        return [f"{argument['name']}={image}"]
    raise ConfigError(
        f"--base-image {image}: FROM names {first.image}, not an argument. Write `ARG BASE={first.image}` "
        "before the first FROM, and `FROM ${BASE}`."
    )


def _require_sources(parsed: Dockerfile, names: Sequence[str], context: Path) -> None:
    """Raise ConfigError for a file that the Dockerfile copies and that is not among the sent ones."""
    # The builder judges what a pattern matches.
    for path in (one for one in unsent_sources(parsed, names) if not re.search(r"[*?[]", one)):
        why = f"{context} has no such file or folder."
        if (context / path).exists():
            why = "it is not sent: git does not track it, or .dockerignore excludes it. Add it (git add)."
        raise ConfigError(f"{path}: the Dockerfile copies it, but {why}")


def require_content(requests: Sequence[BuildRequest], digest: str) -> None:
    """Raise VerificationError unless every request has this content; an empty digest skips the check."""
    for request in requests if digest else ():
        if request.digest != digest:
            raise VerificationError(
                f"{request.image}: the content here is {request.digest}, not the requested {digest}: the "
                "source is not the one that was sent, or has changed since."
            )
