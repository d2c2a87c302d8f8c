"""Count the starts of a pod on a volume that outlives it, because its operator does not count them.

The training operator restarts a pod by its exit code without a limit. The count is a file beside the run
directory, one for each pod. It starts again from 1 when the run has a newer checkpoint than at the previous
start, and after six hours, because the file may be of an earlier job of the same name.
"""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainyard.errors import DamagedFileError
from trainyard.run.atomic_files import write_json_atomically
from trainyard.run.directory import RunDirectory
from trainyard.run.untrusted_files import read_json_object

# Longer than any start takes that ends without a checkpoint.
_FORGOTTEN_AFTER_SECONDS = 6 * 3600.0
# The exit code of a container that was killed, which could not record one.
_KILLED = 137


@dataclass(frozen=True)
class PodStarts:
    """The starts of one pod since its run last made progress."""

    file: Path
    directory: RunDirectory

    def add(self, now: float) -> int:
        """Count one more start at `now` (Unix seconds); return its number, from 1."""
        before, step = self._read(), max(self.directory.checkpoint_steps(), default=0)
        is_over = step > before["step"] or not 0 <= now - before["time"] < _FORGOTTEN_AFTER_SECONDS
        number = 1 if is_over else before["starts"] + 1
        code = _KILLED if before["code"] is None else before["code"]
        self._write({"starts": number, "step": step, "time": now, "code": None, "code_before": code})
        return number

    def note_end(self, code: int, *, counts: bool) -> None:
        """Record the exit code of this start; with `counts` False it is not counted."""
        before = self._read()
        number = max(0, before["starts"] - (not counts))
        self._write({**before, "starts": number, "code": code})

    @property
    def code_before(self) -> int:
        """The exit code of the previous start."""
        return int(self._read()["code_before"])

    def forget(self) -> None:
        """Remove the count, because the operator does not start the pod again."""
        self.file.unlink(missing_ok=True)

    def _read(self) -> dict[str, Any]:
        found: dict[str, Any] = {"starts": 0, "step": 0, "time": 0.0, "code": None, "code_before": _KILLED}
        with suppress(OSError, DamagedFileError):
            found |= read_json_object(self.file, links=False)
        return found

    def _write(self, content: dict[str, Any]) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        write_json_atomically(self.file, content)


def starts_of_pod(run_directory: Path, pod: str) -> PodStarts:
    """Return the count of the pod's starts."""
    file = run_directory.parent / f".{run_directory.name}.{pod or 'pod'}.starts.json"
    return PodStarts(file, RunDirectory(run_directory))
