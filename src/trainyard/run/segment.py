"""A segment of a long run: one workflow run of several that train one model, and what hands it to the next.

    segment 1 ──exit 75, or its runner died──> segment 2 ──> … ──> done    one lineage, one commit, one run

It only says what a segment is. Whether there is a next one is decided in `watch.continuation`.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from trainyard.errors import ConfigError, DamagedFileError
from trainyard.run.outside import parse_json, parse_json_object

_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_THREAD = re.compile(r"[A-Z0-9]{2,40}:\d{1,20}\.\d{1,20}", re.ASCII)
_LARGEST = 10**15
_MANIFEST = re.compile(
    r"(?P<store>(?:s3|file)://[^\s?#]+?)/(?P<key>manifests/run-(?P<number>[1-9]\d{0,14})-manifest(?:-\d+)?\.json)"
)


@dataclass(frozen=True)
class Segment:
    """Which part of which lineage a workflow run is."""

    lineage: str
    """The id of the workflow run that began it."""
    number: int
    """Counted from 1."""
    run_number: int
    """The number in the store: that of the workflow run that began it."""
    commit: str
    """All segments run this commit, in full."""
    step: int = 0
    """Where the lineage stood, as far as it was known, when this segment was dispatched."""
    deaths: int = 0
    """How many segments before this one ended with their runner and without word of a step, in a row."""
    thread: str = ""
    """The lineage's thread in Slack, CHANNEL:TS; empty when there is none that another machine could use."""

    @property
    def run_id(self) -> str:
        """The identity of the run that the lineage trains, and the name of its directory."""
        return f"gh-{self.lineage}"

    @property
    def may_begin(self) -> bool:
        """Whether it may find nothing to go on from: it is the first, or those before died without a step."""
        return self.number == 1 or (self.step == 0 and self.deaths > 0)

    def next(self, *, step: int, died: bool) -> "Segment":
        """The segment after this one, of the same lineage at the same commit."""
        deaths = self.deaths + 1 if died else 0
        return replace(self, number=self.number + 1, step=step, deaths=deaths)

    def told_in(self, thread: str) -> "Segment":
        """The same with the thread in Slack, where one is known now."""
        return replace(self, thread=thread) if _THREAD.fullmatch(thread) else self

    def to_text(self) -> str:
        """As the dispatch input `continues` carries it."""
        return json.dumps(asdict(self), separators=(",", ":"))


def first_segment(environment: Mapping[str, str]) -> Segment:
    """The segment that the workflow run of GitHub's variables begins. Raises ConfigError outside of one."""
    names = ("GITHUB_RUN_ID", "GITHUB_RUN_NUMBER", "GITHUB_SHA")
    missing = [name for name in names if not environment.get(name)]
    if missing:
        raise ConfigError(f"{missing[0]} is not set: this belongs into a workflow run of GitHub Actions.")
    run_id, run_number, commit = (environment[name] for name in names)
    return read_segment(json.dumps(_plain(run_id, run_number, commit)), what="GitHub's variables")


def read_segment(text: str, *, what: str = "continues") -> Segment:
    """Read what `Segment.to_text` wrote. Raises ConfigError, because people can type anything there."""
    try:
        value = parse_json(text, what)
    except DamagedFileError:
        value = None
    if not isinstance(value, dict) or set(value) != set(Segment.__dataclass_fields__):
        raise _refused(what, "is not what a segment hands to the next")
    if not (isinstance(value["lineage"], str) and re.fullmatch(r"[0-9]{1,18}", value["lineage"], re.ASCII)):
        raise _refused(what, "lineage is not the id of a workflow run")
    if not (isinstance(value["commit"], str) and _COMMIT.fullmatch(value["commit"])):
        raise _refused(what, "commit is not a full commit")
    if value["thread"] and not (isinstance(value["thread"], str) and _THREAD.fullmatch(value["thread"])):
        raise _refused(what, "thread is no thread in Slack")
    for name, least in (("number", 1), ("run_number", 1), ("step", 0), ("deaths", 0)):
        number = value[name]
        if not isinstance(number, int) or isinstance(number, bool) or not least <= number < _LARGEST:
            raise _refused(what, f"{name} is not a whole number from {least}")
    return Segment(**value)


@dataclass(frozen=True)
class Handover:
    """What a workflow run resolved and its successor needs: `plan.json`, or the plan job's output `plan`."""

    segment: Segment
    inputs: Mapping[str, str]
    """The dispatch inputs, but for `resume` of a later segment and `continues`."""
    ref: str
    store: str
    most_segments: int

    def inputs_of(self, following: Segment, *, manifest: str = "") -> dict[str, str]:
        """The inputs that the segment `following` is dispatched with; `manifest` is the stored one's name.

        Without a manifest it looks for itself: on the runner first, then in the store. Where no step was ever
        told, it begins as this segment did if it finds nothing.
        """
        unknown = self.inputs.get("resume", "auto") if following.may_begin else "auto"
        resume = f"{self.store}/manifests/{manifest}" if manifest else unknown
        return {**self.inputs, "resume": resume, "continues": following.to_text()}


def read_handover(text: str) -> Handover:
    """Read a plan. Raises ConfigError for anything else."""
    try:
        value = parse_json_object(text, "--plan")
        parts = {name: value[name] for name in ("inputs", "ref", "store", "most_segments")}
        inputs = {str(name): str(entry) for name, entry in parts.pop("inputs").items()}
        return Handover(read_segment(json.dumps(value["segment"]), what="plan"), inputs, **parts)
    except (DamagedFileError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"--plan is not what scripts/plan_run.py resolved ({error})") from None


@dataclass(frozen=True)
class ManifestPlace:
    """A run's manifest by its address, as a pointer to what a run goes on from."""

    store: str
    key: str
    run_number: int


def manifest_place(resume: str) -> ManifestPlace | None:
    """Where the manifest lies whose address is `resume`; None for any other way to resume."""
    match = _MANIFEST.fullmatch(resume)
    return ManifestPlace(match["store"], match["key"], int(match["number"])) if match else None


def _plain(run_id: str, run_number: str, commit: str) -> dict[str, Any]:
    number = int(run_number) if run_number.isascii() and run_number.isdecimal() else None
    return {
        "lineage": run_id,
        "number": 1,
        "run_number": number,
        "commit": commit,
        "step": 0,
        "deaths": 0,
        "thread": "",
    }


def _refused(what: str, why: str) -> ConfigError:
    return ConfigError(f"{what}: {why}. Leave it empty: only the workflow itself fills it in.")
