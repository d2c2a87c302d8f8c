"""Secrets of a build, as the command line names them.

    --secret id=ID,src=FILE | id=ID,env=VARIABLE | id=ID,secretsmanager=NAME   RUN --mount=type=secret,id=ID

A value is never a build argument, a label or a part of the content: docker and buildah read the file or the
variable. CodeBuild gets names of AWS Secrets Manager, never values.
"""

import re
from collections.abc import Container, Sequence
from dataclasses import dataclass

from trainyard.errors import ConfigError

_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_]\w*", re.ASCII)
# https://docs.aws.amazon.com/secretsmanager/latest/apireference/API_CreateSecret.html
_NAME = re.compile(r"(?:arn:aws[a-z-]*:secretsmanager:[\w:/+=.@-]{1,400}|[\w/+=.@-]{1,512}(?::[\w.-]*){0,3})")
_MOUNT = re.compile(r"--mount=(\S*\btype=secret\b\S*)")
_FORM = "write it as id=ID,src=FILE, id=ID,env=VARIABLE or id=ID,secretsmanager=NAME"


@dataclass(frozen=True)
class BuildSecret:
    """A secret that a RUN of the Dockerfile mounts."""

    id: str
    kind: str
    """The place of its value: `src`, a file; `env`, a variable; or `secretsmanager`, a secret of AWS."""
    place: str


def parse_secret(text: str) -> BuildSecret:
    """Parse the value of `--secret`. Raises ConfigError, without repeating what may be a secret."""
    facts = dict(part.partition("=")[::2] for part in text.split(","))
    name = facts.pop("id", "")
    facts = {{"source": "src"}.get(key, key): value for key, value in facts.items() if key != "type"}
    if not _ID.fullmatch(name) or len(facts) > 1:
        raise ConfigError(f"--secret: {_FORM}")
    kind, place = next(iter(facts.items()), ("env", name))  # as docker reads `id=NAME` alone
    patterns = {"src": re.compile(r".+"), "env": _VARIABLE, "secretsmanager": _NAME}
    if kind not in patterns:
        raise ConfigError(f"--secret id={name}: the source of its value is unknown; {_FORM}")
    if not patterns[kind].fullmatch(place):
        raise ConfigError(
            f"--secret id={name}: no valid name for {kind}. Give a name, never the value: {_FORM}"
        )
    return BuildSecret(name, kind, place)


def mounted_secrets(dockerfile: str) -> dict[str, bool]:
    """Return the ids of the secrets that a Dockerfile mounts, and whether each is required."""
    found: dict[str, bool] = {}
    for mount in _MOUNT.findall(dockerfile):
        facts = dict(part.partition("=")[::2] for part in mount.split(","))
        target = facts.get("target") or facts.get("dst") or facts.get("destination") or ""
        name = facts.get("id") or target.rpartition("/")[2]
        required = "required" in facts and facts["required"].lower() != "false"
        found[name] = found.get(name, False) or required
    return found


def require_mounted(secrets: Sequence[BuildSecret], dockerfile: str, name: str) -> None:
    """Raise ConfigError for a secret that no RUN mounts, that is given twice, or is required and missing."""
    mounted = mounted_secrets(dockerfile)
    ids = [secret.id for secret in secrets]
    for one in ids:
        if ids.count(one) > 1:
            raise ConfigError(f"--secret id={one}: it is given twice")
        if one not in mounted:
            known = ", ".join(mounted) or "none"
            raise ConfigError(
                f"--secret id={one}: no RUN of {name} mounts it (mounted: {known}). Write "
                f"RUN --mount=type=secret,id={one} … where it is used."
            )
    for one, required in mounted.items():
        if required and one not in ids:
            raise ConfigError(f"{name} requires the secret {one}: give it with --secret id={one},src=FILE")


def require_readable(secrets: Sequence[BuildSecret], variables: Container[str]) -> None:
    """Raise ConfigError for a secret that a builder on this machine, with these variables, cannot read."""
    for one in secrets:
        if one.kind == "secretsmanager":
            raise ConfigError(
                f"--secret id={one.id}: only a build in AWS reads Secrets Manager; give a file or variable"
            )
        if one.kind == "env" and one.place not in variables:
            raise ConfigError(f"--secret id={one.id}: the variable {one.place} is not set")


def build_variables_of_secrets(
    secrets: Sequence[BuildSecret], *, project: str
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the variables for CodeBuild: plain ones, and those with names of AWS Secrets Manager.

    Raises ConfigError for a value that only this machine has, or that the role of the build cannot read.
    """
    named = dict[str, str]()
    for number, one in enumerate(secrets, start=1):
        if one.kind != "secretsmanager":
            raise ConfigError(
                f"--secret id={one.id}: the build in AWS has no file and no variable of this machine. Store "
                f"the value in AWS Secrets Manager under a name that begins with {project}/, and give that "
                "name (secretsmanager); or use --builder local"
            )
        # The statement ReadBuildSecrets of infrastructure/cloudformation.yaml.
        if not one.place.rpartition(":secret:")[2].startswith(f"{project}/"):
            raise ConfigError(
                f"--secret id={one.id}: the role of the build reads only secrets whose names begin with "
                f"{project}/. Store it under such a name"
            )
        named[f"BUILD_SECRET_{number}"] = one.place
    words = (f"id={one.id},env={variable}" for one, variable in zip(secrets, named, strict=True))
    return {"BUILD_SECRETS": " ".join(words)} if named else {}, named
