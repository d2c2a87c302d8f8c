"""The variables and secrets of the workflows: their names, and the valid values.

docs/variables.md describes each; a test checks that both have the same names.
"""

import json
import re
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from trainyard.config.registries import STORE_SCHEMES, store_examples
from trainyard.errors import ConfigError, DamagedFileError
from trainyard.run.untrusted_files import parse_json, parse_json_object

LABELS = "TRAINYARD_RUNNER_LABELS"
STORE = "TRAINYARD_STORE"
WATCH = "TRAINYARD_WATCH"
ROLE = "TRAINYARD_AWS_ROLE"
REGION = "TRAINYARD_AWS_REGION"
JOB_MINUTES = "TRAINYARD_JOB_MINUTES"
DEADLINE = "TRAINYARD_DEADLINE"
RUNS_DIRECTORY = "TRAINYARD_RUNS_DIRECTORY"
CODEBUILD, CLUSTER = "TRAINYARD_CODEBUILD_PROJECT", "TRAINYARD_EKS_CLUSTER"
DEFAULT_LABELS = ("self-hosted", "gpu")
SELF_HOSTED = "self-hosted"
HOSTED_MINUTES = "355"
"""Time limit of a job on GitHub's own machine, which ends every job after 360 minutes."""
OTHERS = frozenset(
    {
        "TRAINYARD_CONFIG",
        "TRAINYARD_SCHEDULE",
        "TRAINYARD_KEEP_RUNS",
        CODEBUILD,
        CLUSTER,
        "TRAINYARD_EKS_ROLE",
        "TRAINYARD_EKS_NODES",
        "TRAINYARD_EKS_INSTANCE_TYPE",
        "TRAINYARD_EKS_ACCEPT",
        "TRAINYARD_EKS_RUNNER",
        "TRAINYARD_INSTANCE_TYPE",
        "TRAINYARD_USD_PER_HOUR",
        "TRAINYARD_MAX_SEGMENTS",
        "TRAINYARD_GPU_LOCK",
        "TRAINYARD_RUNNERS",
        "TRAINYARD_SUPERSEDE",
        "TRAINYARD_FOLLOW",
        DEADLINE,
        JOB_MINUTES,
        RUNS_DIRECTORY,
        REGION,
        "TRAINYARD_PASS",
        "TRAINYARD_SITE",
        "SLACK_CHANNEL",
    }
)
"""The variables that have no flag of their own."""
SECRETS = {
    "SLACK_BOT_TOKEN": "training",
    "SLACK_WEBHOOK_URL": "training",
    "TRAINYARD_SIGNING_KEY": "training",
    "PROGRAM_ENV": "training",
    "TRAINYARD_RUNNERS_TOKEN": "watch",
}
"""Name of the secret -> its environment."""
_LABEL_WORD = r"[\w.:/=+*@#%~^()-]+"
_LABEL = re.compile(rf"(?=.{{1,256}}$){_LABEL_WORD}( {_LABEL_WORD})*", re.ASCII)
"""A label, which may have single spaces inside. Commas separate labels, and quotes and braces are syntax."""
RUN_EXPRESSION = re.compile(r"\$\{\{ *github\.(run_id|run_attempt|run_number) *\}\}", re.ASCII)
"""The part of a label that is different for each run, as RunsOn documents its labels."""
_GITHUBS_OWN = re.compile(r"ubuntu-(slim|(latest|\d\d\.\d\d)(-arm)?)", re.ASCII)
ENVIRONMENTS = ("training", "watch", "release", "images", "eks", "locks")
NOTIFY = "notify"
"""The environment of the jobs that report: no reviewer and no branch may delay a failure's message."""


class RunnerKind(StrEnum):
    """The kinds of machine that runner labels name. GitHub finds each by other labels."""

    SELF_HOSTED = "self-hosted"
    """A registered machine, which has the label `self-hosted` besides its own."""
    SCALE_SET = "scale-set"
    """A scale set of actions-runner-controller: its name is the only label."""
    HOSTED = "hosted"
    """A machine of GitHub, such as a larger runner with a GPU: its name is the only label."""
    OTHER = "other"
    """Runners of another service, with the labels that it documents."""


def set_variables(environment: MutableMapping[str, str]) -> None:
    """Correct the repository's variables in the environment, which people type into a form.

    Blanks around a value go, and a switch may have capitals.
    """
    for name in (LABELS, STORE, WATCH, ROLE, *OTHERS):
        if value := environment.get(name, "").strip():
            is_switch = value.lower() in ("on", "off", "true", "false")
            environment[name] = value.lower() if is_switch else value


@dataclass(frozen=True)
class RunnerSelector:
    """The value of `runs-on`: a runner must have all labels, and be in the group if one is named."""

    labels: tuple[str, ...]
    group: str = ""


def selector_in_json(text: str) -> RunnerSelector:
    """Return the selector in the value of the variable: a JSON list of labels, or an object with a group.

    Raises ConfigError.
    """
    try:
        found = parse_json(text, "labels")
    except DamagedFileError:
        found = None
    group, labels = "", found
    if isinstance(found, dict) and set(found) <= {"group", "labels"} and isinstance(found.get("group"), str):
        group, labels = found["group"], found.get("labels", [])
        labels = [labels] if isinstance(labels, str) else labels
    is_named = bool(_LABEL.fullmatch(group)) if isinstance(found, dict) else bool(labels)
    if not is_named or not isinstance(labels, list) or not all(map(_is_label, labels)):
        raise ConfigError(
            f'{text[:80]!r} is not a JSON list of labels such as ["self-hosted","gpu"], nor a group such as '
            '{"group":"gpu machines","labels":["self-hosted"]}'
        )
    return RunnerSelector(tuple(dict.fromkeys(labels)), group)


def _is_label(label: object) -> bool:
    return isinstance(label, str) and _LABEL.fullmatch(RUN_EXPRESSION.sub("1", label)) is not None


def parse_runner_labels(text: str) -> RunnerSelector:
    """Return the selector of `gpu,h100`, or of JSON, with the labels in their order. Raises ConfigError."""
    if text.lstrip().startswith(("[", "{")):
        selector = selector_in_json(text)
    else:
        selector = RunnerSelector(tuple(dict.fromkeys(name.strip() for name in text.split(","))))
    labels = selector.labels
    if not all(map(_is_label, labels)):
        raise ConfigError(f"{text[:80]!r}: a label has letters, digits, spaces inside, and -_.:/=+*@#%~^()")
    return selector


def runner_kind(selector: RunnerSelector) -> RunnerKind:
    """Return the kind of machine that the value of the variable shows."""
    if not selector.group and is_self_hosted(selector.labels):
        return RunnerKind.SELF_HOSTED
    is_githubs = len(selector.labels) == 1 and _GITHUBS_OWN.fullmatch(selector.labels[0])
    return RunnerKind.HOSTED if is_githubs else RunnerKind.OTHER


def labels_for(kind: RunnerKind, labels: Sequence[str]) -> tuple[str, ...]:
    """Return the labels that reach a machine of this kind: `self-hosted` is added or left out.

    Raises ConfigError for several labels where one name is all that GitHub compares.
    """
    if kind is RunnerKind.OTHER:
        return tuple(labels)
    if kind is RunnerKind.SELF_HOSTED:
        return tuple(labels) if is_self_hosted(labels) else (SELF_HOSTED, *labels)
    alone = tuple(label for label in labels if label.lower() != SELF_HOSTED)
    if len(alone) != 1:
        what = "a scale set" if kind is RunnerKind.SCALE_SET else "a machine of GitHub"
        raise ConfigError(
            f"{','.join(labels)[:80]!r}: {what} is found by its name alone; give that one name: --labels NAME"
        )
    return alone


def is_self_hosted(labels: Sequence[str]) -> bool:
    """Return whether `self-hosted` is one of the labels; GitHub ignores their case."""
    return SELF_HOSTED in map(str.lower, labels)


def labels_text(selector: RunnerSelector) -> str:
    """Return the value of the variable."""
    labels = list(selector.labels)
    value = {"group": selector.group, **({"labels": labels} if labels else {})}
    return json.dumps(value if selector.group else labels, separators=(",", ":"))


def parse_store(url: str) -> str:
    """Return a valid address of a store, without a slash at its end. Raises ConfigError."""
    form = "|".join(scheme.strict_pattern for scheme in STORE_SCHEMES.values())
    if len(url) > 1000 or not re.fullmatch(form, url):
        raise ConfigError(f"{url[:140]!r} is not a store such as {store_examples()}")
    return url.rstrip("/")


def parse_variable(text: str) -> tuple[str, str]:
    """Return name and value of `NAME=VALUE`. Raises ConfigError for a name that the workflows do not read."""
    name, equals, value = text.partition("=")
    if not equals or not value:
        raise ConfigError(f"{text[:80]!r} is not NAME=VALUE")
    flags = {LABELS: "--labels", STORE: "--store", ROLE: "--aws-role", WATCH: "--no-watch"}
    if name in flags:
        raise ConfigError(f"{name} has a flag of its own: {flags[name]}")
    if name in SECRETS:
        raise ConfigError(f"{name} is a secret: --secret {name}")
    if name not in OTHERS:
        raise ConfigError(f"{name[:80]!r} is not a variable that the workflows read: see docs/variables.md")
    return name, value


def parse_secret(text: str) -> tuple[tuple[str, str], ...]:
    """Return environment and name of `NAME` or `ENVIRONMENT/NAME`, once per environment. Raises ConfigError.

    Without an environment, Slack's secrets are for the job that trains and for those that report.
    """
    place, _, name = text.rpartition("/")
    if name not in SECRETS:
        raise ConfigError(
            f"{name[:80]!r} is not a secret that the workflows read: {', '.join(sorted(SECRETS))}"
        )
    if place and place not in (*ENVIRONMENTS, NOTIFY):
        names = ", ".join((*ENVIRONMENTS, NOTIFY))
        raise ConfigError(f"{place[:80]!r} is not an environment of the workflows: {names}")
    if place:
        return ((place, name),)
    others = (NOTIFY,) if name.startswith("SLACK_") else ()
    return tuple((environment, name) for environment in (SECRETS[name], *others))


def count_in(variables: Mapping[str, str], name: str, *, most: int, default: int = 1, least: int = 1) -> int:
    """Return the whole number in a variable, else `default`. Raises ConfigError."""
    text = variables.get(name) or str(default)
    if not re.fullmatch(r"[1-9]\d{0,5}", text, re.ASCII) or not least <= int(text) <= most:
        raise ConfigError(f"{name}: {text[:40]!r} is not a whole number from {least} to {most}")
    return int(text)


def parse_role(arn: str) -> str:
    """Return a valid ARN of a role. Raises ConfigError."""
    if not re.fullmatch(r"arn:aws(-cn|-us-gov)?:iam::\d{12}:role/[\w+=,.@/-]{1,512}", arn, re.ASCII):
        raise ConfigError(f"{arn[:140]!r} is not a role such as arn:aws:iam::123456789012:role/trainyard-ci")
    return arn


def read_json(environment: Mapping[str, str], name: str) -> dict[str, Any]:
    """Return the JSON object in an environment variable; empty if it is not set. Raises ConfigError."""
    text = environment.get(name) or "{}"
    try:
        return dict(parse_json_object(text, name))
    except DamagedFileError as error:
        raise ConfigError(str(error)) from None
