"""Save a proof beside its run, and read it to show it. `proof.proof` makes the judgement.

A torn record counts as no proof. A record is of another state when it is of another run or another end of
this run, when the run's records now have other bytes, or when it claims a proof for a run that did not
succeed. Times are not compared: a clock may have been set back since.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from pydantic.dataclasses import dataclass
from pydantic.json_schema import SkipJsonSchema

from trainyard.errors import ConfigError, DamagedFileError
from trainyard.proof import PARTS
from trainyard.run.atomic_files import make_folder, write_json_atomically
from trainyard.run.directory import RunDirectory
from trainyard.run.judged_records import digests_now
from trainyard.run.record_models import OF_A_FILE, Count, Number, Text, Truth, validate_record
from trainyard.run.untrusted_files import read_json_object


@dataclass(frozen=True, config=OF_A_FILE)
class PartRecord:
    """One line of the proof."""

    name: Text = ""
    passed: Truth = False
    evidence: Text = ""
    next_step: Annotated[Text | None, Field(alias="fix")] = None
    is_judged: Truth = True
    """False if the run is too short to judge it; the part then holds."""

    @property
    def symbol(self) -> str:
        """The emoji for Markdown and Slack."""
        return "❌" if not self.passed else "✅" if self.is_judged else "➖"


@dataclass(frozen=True, config=OF_A_FILE)
class FigureRecord:
    """A figure of the run beside that of the compared run and its threshold."""

    name: Text = ""
    value: Number | None = None
    baseline: Number | None = None
    threshold: Text = ""
    is_missed: Truth = False
    """Whether the figure misses its threshold."""

    @property
    def mark(self) -> str:
        """The emoji for Markdown and Slack; empty without a threshold."""
        return "" if not self.threshold else "❌" if self.is_missed else "✅"


@dataclass(frozen=True, config=OF_A_FILE)
class ProofRecord:
    """The content of `report/proof.json`."""

    schema_version: Count = 1
    parts: tuple[PartRecord, ...] = ()
    claimed: Annotated[Truth, Field(alias="proven")] = False
    run_number: Count | None = None
    store: Text | None = None
    figures: tuple[FigureRecord, ...] = ()
    compared_with: Text = ""
    """The run whose figures are `baseline`, such as `last green run 11`; empty where there is none."""
    is_of_another_state: SkipJsonSchema[bool] = False
    """The run has changed since it was judged, so nothing in the record counts."""

    @property
    def proven(self) -> bool:
        """Return whether all parts hold and the record claims the proof."""
        names = tuple(part.name for part in self.parts)
        return self.claimed and names == PARTS and not self.failing

    @property
    def compares(self) -> bool:
        """Return whether a figure has a threshold or the value of another run beside it."""
        return any(each.threshold or each.baseline is not None for each in self.figures)

    @property
    def failing(self) -> tuple[PartRecord, ...]:
        return tuple(part for part in self.parts if not part.passed)


def read_proof(layout: RunDirectory, run: Mapping[str, Any]) -> ProofRecord | None:
    """The proof of `run`, the content of `run.json` in its directory; None when there is none."""
    try:
        value = read_json_object(layout.report / "proof.json")
    except (FileNotFoundError, DamagedFileError):
        return None
    if not _is_of(run, value) or value.get("records") != digests_now(layout):
        return ProofRecord(is_of_another_state=True)
    try:
        return validate_record(ProofRecord, value)
    except ValueError:
        return None


def proven_store(layout: RunDirectory, run_id: str) -> str | None:
    """Return the address of the store of the run's last proof; None when it names none."""
    try:
        value = read_json_object(layout.report / "proof.json")
    except (FileNotFoundError, DamagedFileError):
        return None
    store = value.get("store")
    return store if isinstance(store, str) and value.get("run_id") == run_id else None


def write_proof(path: Path, record: Mapping[str, Any]) -> None:
    """Write `proof.json` into the report folder of a run. Raises ConfigError or OSError."""
    make_folder(path.parent)
    if path.exists() and not path.is_file():
        raise ConfigError(f"{path}: is not a file. Move it away.")
    write_json_atomically(path, record)


def _is_of(run: Mapping[str, Any], proof: dict[str, Any]) -> bool:
    """Return whether the proof is of this run and this end of it."""
    outcome = run.get("outcome")
    ended = outcome if isinstance(outcome, Mapping) else {}
    if proof.get("run_id") != run.get("run_id") or proof.get("finished") != ended.get("finished"):
        return False
    return proof.get("proven") is not True or ended.get("status") == "succeeded"
