"""Check the user's choices for one account and region, and return the settings that the list needs.

values of CHOICES, account, region  ──>  Settings | ConfigError with every wrong choice
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trainyard.errors import ConfigError
from trainyard.infrastructure.policies import ARTIFACT_BUCKET, LOG_GROUP, SOURCE_BUCKET
from trainyard.infrastructure.resources import CHOICES, CONDITIONS, LOG_DAYS, RESOURCES, Choice
from trainyard.infrastructure.values import PLACEHOLDER, Resource, Settings, resolve_value

_BUCKET_LETTERS = 63
_REGION = re.compile(r"[a-z]{2}(-[a-z]+)+-\d")


@dataclass(frozen=True)
class Account:
    """Where the resources are made."""

    number: str
    """Twelve digits."""
    region: str
    partition: str = "aws"


def settings_for(chosen: Mapping[str, Any], account: Account) -> Settings:
    """Check the choices and fill in the defaults. Raises ConfigError that names every wrong choice."""
    values = {choice.name: chosen.get(choice.name, choice.default) for choice in CHOICES}
    problems = [*_problems(values), *_too_long(values, account)]
    if problems:
        count = f"{len(problems)} error{'s' * (len(problems) > 1)}. Nothing was started."
        raise ConfigError("\n".join([*problems, count]))
    texts = {name: value for name, value in values.items() if isinstance(value, str)}
    texts |= {"Account": account.number, "Region": account.region, "Partition": account.partition}
    role = f"arn:{account.partition}:iam::{account.number}:role/{values['Project']}"
    return Settings(
        texts=texts,
        values=values,
        conditions={name: all(values[each] for each in needed) for name, needed in CONDITIONS.items()},
        arns={"BuildRole": f"{role}-build", "GitHubRole": f"{role}-github"},
        names={
            "SourceBucket": _filled(SOURCE_BUCKET, texts),
            "ArtifactBucket": _filled(ARTIFACT_BUCKET, texts),
            "LogGroup": _filled(LOG_GROUP, texts),
        },
    )


def wanted_resources(settings: Settings) -> Iterator[tuple[Resource, dict[str, Any]]]:
    """The resources of this account, in the order in which they are made, with their properties filled in."""
    for resource in RESOURCES:
        if not resource.condition or settings.conditions[resource.condition]:
            yield resource, resolve_value(resource.properties, settings)


def _filled(text: str, texts: Mapping[str, str]) -> str:
    return PLACEHOLDER.sub(lambda found: texts[found[1]], text)


def _problems(values: Mapping[str, Any]) -> Iterator[str]:
    for choice in CHOICES:
        value = values[choice.name]
        if choice.highest and not choice.lowest <= value <= choice.highest:
            yield f"--{choice.flag}: {value} is not from {choice.lowest} to {choice.highest:,}"
        if choice.name == "LogDays" and value not in LOG_DAYS:
            yield f"--{choice.flag}: CloudWatch Logs keeps {', '.join(map(str, LOG_DAYS))} days, not {value}"
        if choice.pattern:
            yield from _mismatches(choice, value if isinstance(value, list) else [value])


def _mismatches(choice: Choice, texts: list[str]) -> Iterator[str]:
    for text in texts:
        if not re.search(choice.pattern, text, re.ASCII) or "\n" in text:
            yield f"--{choice.flag}: {text[:80]!r} does not fit {choice.pattern} ({choice.help})"


def _too_long(values: Mapping[str, Any], account: Account) -> Iterator[str]:
    if not _REGION.fullmatch(account.region):
        yield f"--region: {account.region[:40]!r} is not a region such as us-west-2"
        return
    texts = {"Project": values["Project"], "Account": account.number, "Region": account.region}
    longest = max((_filled(name, texts) for name in (SOURCE_BUCKET, ARTIFACT_BUCKET)), key=len)
    if len(longest) > _BUCKET_LETTERS:
        name = values["Project"]
        yield (
            f"--project-name: {name[:40]!r} is too long: a bucket would be called {longest[:99]}. Its name "
            f"has at most {_BUCKET_LETTERS} letters; use {_BUCKET_LETTERS - len(longest) + len(name)}"
        )
