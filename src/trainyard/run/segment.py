"""Segments of a long run: several workflow runs train one model, and each hands over to the next.

    segment 1 ──exit 75──> segment 2 ──> … ──> done    one lineage, one commit, one run

This module only describes a segment. `watch.continuation` decides whether there is a next one.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from trainyard.errors import ConfigError, DamagedFileError
from trainyard.run.untrusted_files import parse_json, parse_json_object

_THREAD = r"[A-Z0-9]{2,40}:[0-9]{1,20}\.[0-9]{1,20}"
# The form of each text of a segment, and what it is.
_TEXTS = {
    "lineage": (r"[0-9]{1,18}", "the id of a workflow run"),
    "commit": (r"[0-9a-f]{40}|[0-9a-f]{64}", "a full commit hash"),
    "name": (r"[A-Za-z0-9._-]{0,40}", "of letters, digits, dots, - and _, at most 40"),
    "thread": (rf"(?:{_THREAD})?", "a Slack thread (CHANNEL:TS)"),
}
_LEAST = {"number": 1, "run_number": 1, "step": 0, "outages": 0}
_LARGEST = 10**15
_MANIFEST = re.compile(
    r"(?P<store>(?:s3|file)://[^\s?#]+?)/(?P<key>manifests/run-(?P<number>[1-9]\d{0,14})-(?:manifest|open)(?:-\d+)?\.json)"
)


@dataclass(frozen=True)
class Segment:
    """The position of a workflow run in a lineage."""

    lineage: str
    """The id of the lineage's first workflow run."""
    number: int
    """Counted from 1."""
    run_number: int
    """The run number in the store: that of the lineage's first workflow run."""
    commit: str
    """The full commit hash, the same for all segments."""
    step: int = 0
    """The lineage's last known step when this segment was dispatched."""
    thread: str = ""
    """The lineage's Slack thread, CHANNEL:TS; empty if there is none that another machine can use."""
    outages: int = 0
    """Number of consecutive segments before this one that ended because a service was away."""
    name: str = ""
    """The name that its workflow gives this call of train.yml, where it calls several."""

    @property
    def run_id(self) -> str:
        """The identity of the run that the lineage trains, which is also the name of its directory."""
        return f"gh-{self.lineage}{'-' if self.name else ''}{self.name}"

    @property
    def tag(self) -> str:
        """The tag that keeps the commit of the lineage, and on which its segments run."""
        return f"trainyard-lineage-{self.run_id.removeprefix('gh-')}"

    def next(self, *, step: int) -> "Segment":
        """Return the next segment, of the same lineage at the same commit."""
        return replace(self, number=self.number + 1, step=step, outages=0)

    def next_after_outage(self) -> "Segment":
        """Return the next segment after one that ended because a service was unavailable."""
        return replace(self, number=self.number + 1, outages=self.outages + 1)

    def with_thread(self, thread: str) -> "Segment":
        """Return the same segment with the Slack thread, if it is known now."""
        return replace(self, thread=thread) if re.fullmatch(_THREAD, thread) else self

    def to_text(self) -> str:
        """Return the value of the dispatch input `continues`."""
        return json.dumps(asdict(self), separators=(",", ":"))


def first_segment(environment: Mapping[str, str], name: str = "") -> Segment:
    """Return the first segment, from GitHub's variables. Raises ConfigError outside a workflow run."""
    names = ("GITHUB_RUN_ID", "GITHUB_RUN_NUMBER", "GITHUB_SHA")
    missing = [name for name in names if not environment.get(name)]
    if missing:
        raise ConfigError(f"{missing[0]} is not set: this must run in a workflow of GitHub Actions.")
    run_id, run_number, commit = (environment[name] for name in names)
    number = int(run_number) if run_number.isascii() and run_number.isdecimal() else 0
    first = Segment(lineage=run_id, number=1, run_number=number, commit=commit, name=name)
    return read_segment(first.to_text(), what="GitHub's variables")


def read_segment(text: str, *, what: str = "continues") -> Segment:
    """Parse the text of `Segment.to_text`. Raises ConfigError, because people can type anything there."""
    try:
        value = parse_json(text, what)
    except DamagedFileError:
        value = None
    if not isinstance(value, dict) or set(value) != set(Segment.__dataclass_fields__):
        raise _refusal(what, "is not the text that a segment passes to the next")
    for name, (form, words) in _TEXTS.items():
        if not (isinstance(value[name], str) and re.fullmatch(form, value[name])):
            raise _refusal(what, f"{name} is not {words}")
    for name, least in _LEAST.items():
        number = value[name]
        if not isinstance(number, int) or isinstance(number, bool) or not least <= number < _LARGEST:
            raise _refusal(what, f"{name} is not a whole number from {least}")
    return Segment(**value)


@dataclass(frozen=True)
class Handover:
    """The resolved values that a workflow run passes on: `plan.json`, or the plan job's output `plan`."""

    segment: Segment
    inputs: Mapping[str, str]
    """The inputs of the run, except a later segment's `resume`."""
    store: str
    most_segments: int

    def inputs_of(self, following: Segment, *, manifest: str = "") -> dict[str, str]:
        """Return the dispatch inputs for the segment `following`; `manifest` is the stored manifest's name.

        All is in the one input `continues`, because a workflow need not have others. Without a manifest, the
        segment searches for a checkpoint: on the runner first, then in the store.
        """
        resume = f"{self.store}/manifests/{manifest}" if manifest else "auto"
        state = {**asdict(following), "inputs": {**self.inputs, "resume": resume}}
        return {"continues": json.dumps(state, separators=(",", ":"))}


def read_continues(text: str) -> tuple[Segment, dict[str, str]]:
    """Return the segment and the inputs in the dispatch input `continues`. Raises ConfigError."""
    what = "continues"
    try:
        value = dict(parse_json_object(text, what))
    except DamagedFileError:
        value = {}
    inputs = value.pop("inputs", {})
    if not isinstance(inputs, dict):
        raise _refusal(what, "inputs is not an object")
    return read_segment(json.dumps(value)), {str(name): str(entry) for name, entry in inputs.items()}


def read_handover(text: str) -> Handover:
    """Parse a plan, or the handover within the plan job's output. Raises ConfigError for anything else."""
    try:
        value = parse_json_object(text, "--plan")
        if isinstance(value.get("plan"), dict):  # the output of the plan job contains it
            value = value["plan"]
        parts = {name: value[name] for name in ("inputs", "store", "most_segments")}
        inputs = {str(name): str(entry) for name, entry in parts.pop("inputs").items()}
        return Handover(read_segment(json.dumps(value["segment"]), what="plan"), inputs, **parts)
    except (DamagedFileError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"--plan is no plan of trainyard step plan ({error})") from None


@dataclass(frozen=True)
class ManifestPlace:
    """The address of a run's manifest, given as the point to resume from."""

    store: str
    key: str
    run_number: int


def manifest_place(resume: str) -> ManifestPlace | None:
    """Return the manifest's place if `resume` is its address; None for any other way to resume."""
    match = _MANIFEST.fullmatch(resume)
    return ManifestPlace(match["store"], match["key"], int(match["number"])) if match else None


def _refusal(what: str, why: str) -> ConfigError:
    return ConfigError(f"{what}: {why}. Leave it empty: only the workflow itself fills it in.")
