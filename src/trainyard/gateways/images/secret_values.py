"""Read the values of build secrets: a file, a variable, or AWS Secrets Manager. Values reach no log.

A value that is in no file is written into one that only this user can read, for the time of the build.
"""

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from trainyard.errors import ConfigError
from trainyard.gateways.aws_refusals import AwsAccount

if TYPE_CHECKING:
    from trainyard.image.building.build_secrets import BuildSecret


def read_value(what: str, secret: "BuildSecret", aws: Callable[[], AwsAccount]) -> str:
    """Return a value. Raises ConfigError if there is none, ServiceError if AWS refuses."""
    if secret.kind == "src":
        try:
            return Path(secret.place).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
            raise ConfigError(f"{what}: {secret.place}: {reason}") from None
    if secret.kind == "env":
        if not os.environ.get(secret.place):
            raise ConfigError(f"{what}: the variable {secret.place} is not set")
        return os.environ[secret.place]
    # NAME[:KEY[:STAGE[:VERSION]]], as CodeBuild reads it; an ARN has six colons of its own.
    is_arn = secret.place.startswith("arn:")
    words = secret.place.split(":")
    name = ":".join(words[:7]) if is_arn else words[0]
    key = next(iter(words[7:] if is_arn else words[1:]), "")
    answer = aws().call(
        "secretsmanager",
        "get_secret_value",
        what=f"read the secret {name}",
        missing={"ResourceNotFoundException": f"{what}: AWS Secrets Manager has no secret {name}"},
        SecretId=name,
    )
    value = str(answer.get("SecretString", ""))
    if not key:
        return value
    try:
        return str(json.loads(value)[key])
    except (ValueError, KeyError, TypeError):
        raise ConfigError(f"{what}: the secret has no key {key}") from None


@contextmanager
def secret_files(
    secrets: "Sequence[BuildSecret]", aws: Callable[[], AwsAccount]
) -> Iterator[dict[str, Path]]:
    """Yield a file for each secret by its id; those made here are removed at the end."""
    with tempfile.TemporaryDirectory(prefix="trainyard-secrets-") as folder:
        found: dict[str, Path] = {}
        for number, secret in enumerate(secrets):
            value = read_value(f"--secret id={secret.id}", secret, aws)
            if secret.kind == "src":
                found[secret.id] = Path(secret.place).absolute()
                continue
            path = Path(folder, str(number))
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(value)
            found[secret.id] = path
        yield found
