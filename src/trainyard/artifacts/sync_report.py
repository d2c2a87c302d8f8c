"""What a sync did, as data and as one line for people. Nothing is stored or read here."""

from dataclasses import asdict, dataclass
from typing import Any

from trainyard.errors import ExitCode


@dataclass(frozen=True)
class SyncReport:
    """What a sync did."""

    store: str
    run_id: str
    run_number: int
    manifest_key: str
    objects: int
    """In the manifest, whether sent now or before."""
    bytes: int
    """Of all of them."""
    seconds: float
    sent: int
    """Objects that went now; the manifest is not counted."""
    skipped: int
    """Objects that were there already."""
    problems: tuple[str, ...]
    """What was not stored, and why. Not empty means: the answer is no."""
    notes: tuple[str, ...]
    signature_key: str = ""
    """Of the manifest that holds; empty when it is not signed."""
    manifest_sha256: str = ""

    @property
    def exit_code(self) -> ExitCode:
        return ExitCode.NO if self.problems else ExitCode.DONE

    @property
    def outputs(self) -> dict[str, str]:
        """What later steps of a workflow need to know."""
        return {"manifest": self.manifest_key.rpartition("/")[2], "manifest_sha256": self.manifest_sha256}

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def summary(self) -> str:
        """One line for people."""
        where = f"{self.store}/run-{self.run_number}"
        if not self.sent and not self.problems:
            return f"{self.objects} files, {size_text(self.bytes)} in {where}: unchanged, nothing sent"
        sent = f"{self.sent} of {self.objects}" if self.skipped else f"{self.objects}"
        return f"{sent} files, {size_text(self.bytes)} → {where} in {self.seconds:.1f} s"


def size_text(size: int) -> str:
    """Bytes as people say them: `812 bytes`, `43 MB`, `8.8 GB`."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            value = size / factor
            return f"{value:.1f} {unit}" if value < 10 else f"{value:,.0f} {unit}"
    return f"{size} bytes"
