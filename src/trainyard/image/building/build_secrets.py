"""Secrets of a build, and logins for private base images, as the command line names them.

    --secret id=ID,src=FILE | id=ID,env=VARIABLE | id=ID,secretsmanager=NAME   RUN --mount=type=secret,id=ID
    --login HOST=env:VARIABLE | HOST=secretsmanager:NAME                       FROM HOST/…

A value is never a build argument, a label or a part of the content. `gateways/images/secret_values.py` reads
it where the image is built. CodeBuild gets names of AWS Secrets Manager, never values.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainyard.errors import ConfigError

_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*(?::\d{1,5})?", re.ASCII)
# https://docs.aws.amazon.com/secretsmanager/latest/apireference/API_CreateSecret.html
_NAME = re.compile(r"(?:arn:aws[a-z-]*:secretsmanager:[\w:/+=.@-]{1,400}|[\w/+=.@-]{1,512}(?::[\w.-]*){0,3})")
_MOUNT = re.compile(r"--mount=(\S*\btype=secret\b\S*)")
_FORM = "write it as id=ID,src=FILE, id=ID,env=VARIABLE or id=ID,secretsmanager=NAME"
_LOGIN_FORM = "write it as HOST=env:VARIABLE or HOST=secretsmanager:NAME"


@dataclass(frozen=True)
class BuildSecret:
    """A secret that a RUN of the Dockerfile mounts, or a login for the registry of a base image."""

    id: str
    """The id of the mount, or the host of the registry."""
    kind: str
    """The place of its value: `src`, a file; `env`, a variable; or `secretsmanager`, a secret of AWS.

    The value of a login is `user:password`, or JSON with both.
    """
    place: str


def parse_secret(text: str) -> BuildSecret:
    """Parse the value of `--secret`. Raises ConfigError, without repeating what may be a secret."""
    facts = dict(part.partition("=")[::2] for part in text.split(","))
    name = facts.pop("id", "")
    facts = {{"source": "src"}.get(key, key): value for key, value in facts.items() if key != "type"}
    if not _ID.fullmatch(name) or len(facts) > 1:
        raise ConfigError(f"--secret: {_FORM}")
    kind, place = next(iter(facts.items()), ("env", name))  # as docker reads `id=NAME` alone
    return _require_valid_source(BuildSecret(name, kind, place), f"--secret id={name}", _FORM)


def parse_login(text: str) -> BuildSecret:
    """Parse the value of `--login`. Raises ConfigError, without repeating what may be a secret."""
    host, _, rest = text.partition("=")
    kind, colon, place = rest.partition(":")
    if not _HOST.fullmatch(host) or not colon:
        raise ConfigError(f"--login: {_LOGIN_FORM}")
    return _require_valid_source(BuildSecret(host, kind, place), f"--login {host}", _LOGIN_FORM)


def _require_valid_source(secret: BuildSecret, what: str, form: str) -> BuildSecret:
    patterns = {"src": re.compile(r".+"), "env": _VARIABLE, "secretsmanager": _NAME}
    if secret.kind not in patterns:
        raise ConfigError(f"{what}: the source of its value is unknown; {form}")
    if not patterns[secret.kind].fullmatch(secret.place):
        raise ConfigError(f"{what}: no valid name for {secret.kind}. Give a name, never the value: {form}")
    return secret


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


def build_variables_of_secrets(
    secrets: Sequence[BuildSecret], logins: Sequence[BuildSecret], *, project: str
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the variables for CodeBuild: plain ones, and those with names of AWS Secrets Manager.

    Raises ConfigError for a value that only this machine has, or that the role of the build cannot read.
    """
    plain, named = dict[str, str](), dict[str, str]()
    for given, variable, option, form in (
        (secrets, "BUILD_SECRET", "--secret id=", "id={},env={}"),
        (logins, "REGISTRY_LOGIN", "--login ", "{}=env:{}"),
    ):
        words = []
        for number, one in enumerate(given, start=1):
            named[f"{variable}_{number}"] = _name_in_aws(f"{option}{one.id}", one, project)
            words.append(form.format(one.id, f"{variable}_{number}"))
        plain |= {f"{variable}S": " ".join(words)} if words else {}
    return plain, named


def _name_in_aws(what: str, secret: BuildSecret, project: str) -> str:
    if secret.kind != "secretsmanager":
        raise ConfigError(
            f"{what}: the build in AWS has no file and no variable of this machine. Store the value in AWS "
            f"Secrets Manager under a name that begins with {project}/, and give that name "
            "(secretsmanager); or use --builder local"
        )
    # The statement ReadBuildSecrets of infrastructure/cloudformation.yaml.
    if not secret.place.rpartition(":secret:")[2].startswith(f"{project}/"):
        raise ConfigError(
            f"{what}: the role of the build reads only secrets whose names begin with {project}/. Store it "
            "under such a name"
        )
    return secret.place


def login_of(host: str, value: str) -> tuple[str, str]:
    """Return user and password from the value of a login. Raises ConfigError, without showing the value."""
    try:
        facts = json.loads(value)
    except ValueError:
        facts = None
    if isinstance(facts, Mapping):
        user, password = str(facts.get("username", "")), str(facts.get("password", ""))
    else:
        user, _, password = value.strip().partition(":")
    if not user or not password:
        raise ConfigError(
            f"--login {host}: the value is neither user:password nor JSON with `username` and `password`"
        )
    return user, password
