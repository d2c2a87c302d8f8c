"""Count the starts of a pod on a volume that outlives it, because its operator does not count them.

The training operator restarts a pod by its exit code without a limit. The count is a file beside the run
directory, one for each pod.
"""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trainyard.errors import DamagedFileError
from trainyard.run.atomic_files import write_json_atomically
from trainyard.run.untrusted_files import read_json_object


@dataclass(frozen=True)
class PodStarts:
    """The starts of one pod since its job began."""

    file: Path

    def add(self) -> int:
        """Count one more start; return its number, from 1."""
        number = self._count() + 1
        self._write(number)
        return number

    def take_back(self) -> None:
        """Do not count this start, because the pod was asked to end and has a good checkpoint."""
        self._write(max(0, self._count() - 1))

    def forget(self) -> None:
        """Remove the count, because the operator does not start the pod again."""
        self.file.unlink(missing_ok=True)

    def _count(self) -> int:
        with suppress(OSError, DamagedFileError):
            number = read_json_object(self.file, links=False).get("starts")
            if isinstance(number, int) and not isinstance(number, bool) and number >= 0:
                return number
        return 0

    def _write(self, number: int) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        write_json_atomically(self.file, {"starts": number})


def starts_of_pod(run_directory: Path, pod: str) -> PodStarts:
    """Return the count of the pod's starts."""
    return PodStarts(run_directory.parent / f".{run_directory.name}.{pod or 'pod'}.starts.json")
