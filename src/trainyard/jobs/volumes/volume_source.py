"""Read the files of a volume in a pod that mounts it: list them, and send one of them from any byte on.

The program that does this (`volume_agent`) is sent to the pod's own Python over stdin; nothing is installed
or written in the pod.
"""

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.errors import CheckpointError, ServiceError, ServiceTroubleError
from trainyard.jobs.state.pod_facts import Place
from trainyard.programs.checkpoints import volume_agent
from trainyard.programs.checkpoints.volume_listing import VolumeFile, VolumeListing, parse_listing

if TYPE_CHECKING:
    from trainyard.gateways.kubernetes.api import Api

_LOADER = "import sys;exec(compile(sys.stdin.buffer.read({size}).decode(),'trainyard','exec'))"
_MOST_PRINTED = 1 << 16
_NO_PYTHON = (126, 127)


class VolumeSource:
    """A folder in a container."""

    def __init__(self, api: "Api", place: Place, root: str, *, python: str = "python3") -> None:
        self._api, self.place, self.root, self._python = api, place, root, python
        self._program = Path(volume_agent.__file__).read_bytes()

    def __str__(self) -> str:
        return f"{self.place}:{self.root}"

    def listing(self) -> VolumeListing:
        """Return all files below the folder. Raises ServiceError, CheckpointError if it does not exist."""
        output = bytearray()
        self._run(["look", self.root], output.extend)
        return parse_listing(bytes(output))

    def send(self, file: VolumeFile, start: int, take: Callable[[bytes], None]) -> str:
        """Pass the bytes of the file from `start` on to `take`; return the SHA-256 of all of it in the pod.

        Raises ServiceTroubleError if the connection breaks; the bytes that `take` has received are correct.
        Raises CheckpointError for a file that changed meanwhile, or since it was listed.
        """
        answer = self._run(["send", self.root, file.path, str(start)], take)
        try:
            size, digest, is_same = int(answer["size"]), str(answer["sha256"]), answer["same"] is True
        except (KeyError, TypeError, ValueError):
            raise ServiceError(
                f"the program in the pod did not report what it has read of {file.path}"
            ) from None
        if not is_same or size != file.size:
            raise CheckpointError(f"{file.path} changed while it was copied; copy again when it is done")
        return digest

    def _run(self, words: Sequence[str], take: Callable[[bytes], None]) -> dict[str, Any]:
        """Run the program and pass on its output; return the last line of its answer."""
        command, printed = [self._python, "-c", _LOADER.format(size=len(self._program)), *words], b""
        with self._api.execute(self.place, command, stdin=self._program) as running:
            for channel, piece in running.streams():
                if channel == running.STDOUT:
                    take(piece)
                else:
                    printed = (printed + piece)[-_MOST_PRINTED:]
            answer = _last_json(printed)
            if running.exit_code:
                raise self._failure(running.exit_code, answer, printed)
            return answer

    def _failure(self, code: int, answer: dict[str, Any], printed: bytes) -> Exception:
        if "error" in answer:
            return CheckpointError(f"{self.place}: {answer['error']}")
        last = printed.decode(errors="replace").strip().splitlines()[-1:] or [f"exit code {code}"]
        if code in _NO_PYTHON or "not found" in last[0]:
            return ServiceError(
                f"{self.place} has no {self._python}; name one with --python: {last[0][:200]}"
            )
        if code > 128:
            return ServiceTroubleError(f"the program in {self.place} was ended by signal {code - 128}")
        return ServiceError(f"the program in {self.place} failed: {last[0][:300]}")


def _last_json(printed: bytes) -> dict[str, Any]:
    for line in reversed(printed.splitlines()):
        with suppress(ValueError, RecursionError):
            answer = json.loads(line)
            if isinstance(answer, dict):
                return answer
    return {}
