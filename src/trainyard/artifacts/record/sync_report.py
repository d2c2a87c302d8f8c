"""The result of a sync, as data and as one line for people. Nothing is stored or read here."""

from dataclasses import asdict, dataclass
from typing import Any

from trainyard.errors import ExitCode
from trainyard.run.sizes import format_size


@dataclass(frozen=True)
class SyncReport:
    """The result of a sync."""

    store: str
    run_id: str
    run_number: int
    manifest_key: str
    objects: int
    """Number of objects in the manifest, whether sent now or before."""
    bytes: int
    """Total size of all these objects."""
    seconds: float
    sent: int
    """Number of objects sent now, without the manifest."""
    skipped: int
    """Number of objects that the store had already."""
    problems: tuple[str, ...]
    """Files and checkpoints that were not stored, and why. If not empty, the exit code is 1."""
    notes: tuple[str, ...]
    signature_key: str = ""
    """Key of the newest manifest's signature; empty when it is not signed."""
    manifest_sha256: str = ""
    sent_bytes: int = 0
    """Total size of the objects sent now."""

    @property
    def exit_code(self) -> ExitCode:
        return ExitCode.NO if self.problems else ExitCode.DONE

    @property
    def outputs(self) -> dict[str, str]:
        """Outputs for later steps of a workflow."""
        return {"manifest": self.manifest_key.rpartition("/")[2], "manifest_sha256": self.manifest_sha256}

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def summary(self) -> str:
        """One line for people."""
        where = f"{self.store}/run-{self.run_number}"
        if not self.sent and not self.problems:
            return f"{self.objects} files, {format_size(self.bytes)} in {where}: unchanged, nothing sent"
        sent = f"{self.sent} of {self.objects}" if self.skipped else f"{self.objects}"
        return f"{sent} files, {format_size(self.bytes)} → {where} in {self.seconds:.1f} s"


class Verdict:
    """A dataclass that is good if it has no `problems`."""

    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        return {"ok": self.ok, **asdict(self)}  # type: ignore[call-overload]
