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
# The place of a value, by its kind.
# https://docs.aws.amazon.com/secretsmanager/latest/apireference/API_CreateSecret.html
_PLACES = {
    "src": re.compile(r".+"),
    "env": re.compile(r"[A-Za-z_]\w*", re.ASCII),
    "secretsmanager": re.compile(
        r"arn:aws[a-z-]*:secretsmanager:[\w:/+=.@-]{1,400}|[\w/+=.@-]{1,512}(?::[\w.-]*){0,3}"
    ),
}
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
    kind, place = next(iter(facts.items()), ("env", name))  # as docker reads `id=NAME` alone
    pattern = _PLACES.get(kind)
    if not _ID.fullmatch(name) or len(facts) > 1 or pattern is None or not pattern.fullmatch(place):
        raise ConfigError(f"--secret: {_FORM}. Name the place of the value, never the value")
    return BuildSecret(name, kind, place)


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
