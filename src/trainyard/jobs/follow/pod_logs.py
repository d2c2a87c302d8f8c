"""Read or save the present logs of a job's pods.

    pods ──containers that have started──> one request each ──> a file each, or lines

The log of a deleted pod is lost, except what its run directory has.
"""

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from trainyard.cluster.server_side_apply import path_part
from trainyard.errors import ServiceError
from trainyard.jobs.state.reading import Json

if TYPE_CHECKING:
    from trainyard.gateways.kubernetes.api import Api

_AT_ONCE = 8
_SILENCE = 60.0


@dataclass(frozen=True)
class ContainerLog:
    """The log of one container, or of the same container before its restart."""

    pod: str
    uid: str
    container: str
    life: int
    """How many times it was restarted before; a life is from one start to its end."""
    previous: bool = False
    running: bool = False

    @property
    def title(self) -> str:
        """The prefix of each of its lines."""
        return f"{self.pod}/{self.container}" + (f"#{self.life}" if self.life else "")

    @property
    def file_name(self) -> str:
        """A file name per life of the container, because a pod that is created again has the same name."""
        restart = f".restart-{self.life}" if self.life else ""
        return f"{self.pod}.{self.uid[:8]}.{self.container}{restart}.log"


def container_logs(pods: Iterable[Json], *, previous: bool = True) -> list[ContainerLog]:
    """Return the logs that these pods can have: those of started containers."""
    return [log for pod in pods for log in _pod_logs(pod) if previous or not log.previous]


def _pod_logs(pod: Json) -> Iterator[ContainerLog]:
    meta, status = pod.get("metadata") or {}, pod.get("status") or {}
    name, uid = str(meta.get("name")), str(meta.get("uid"))
    for group in ("initContainerStatuses", "containerStatuses"):
        for entry in status.get(group) or ():
            state, restarts = entry.get("state") or {}, int(entry.get("restartCount") or 0)
            container = str(entry.get("name"))
            if (entry.get("lastState") or {}).get("terminated"):
                yield ContainerLog(name, uid, container, max(restarts, 1) - 1, previous=True)
            if state.get("running") or state.get("terminated"):
                yield ContainerLog(name, uid, container, restarts, running=bool(state.get("running")))


def read_log(api: "Api", namespace: str, log: ContainerLog, *, tail: int | None = None) -> list[str]:
    """Return the last `tail` lines of a log, or all. Raises ServiceError."""
    stream = api.stream(log_path(namespace, log, tail=tail), silence=_SILENCE)
    return [line.decode(errors="replace") for line in stream.lines()]


def save_logs(api: "Api", namespace: str, pods: Iterable[Json], folder: Path) -> tuple[list[Path], list[str]]:
    """Write the log of every container of these pods into `folder`; a longer existing file is kept.

    Return the files, and the logs that could not be read, with the reasons.
    """
    folder.mkdir(parents=True, exist_ok=True)
    logs = container_logs(pods)

    def save(log: ContainerLog) -> Path | str:
        try:
            return _save_log(api, namespace, log, folder)
        except ServiceError as error:
            return f"{log.pod}/{log.container}: {error}"

    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="logs") as pool:
        done = list(pool.map(save, logs))
    return [each for each in done if isinstance(each, Path)], [each for each in done if isinstance(each, str)]


def _save_log(api: "Api", namespace: str, log: ContainerLog, folder: Path) -> Path:
    path = folder / log.file_name
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    stream = api.stream(log_path(namespace, log), silence=_SILENCE)
    try:
        with partial.open("wb") as file:
            file.writelines(line + b"\n" for line in stream.lines())
        if not path.exists() or path.stat().st_size <= partial.stat().st_size:
            partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return path


def log_path(namespace: str, log: ContainerLog, *, tail: int | None = None) -> str:
    query = {"container": log.container}
    query |= {"previous": "true"} if log.previous else {}
    query |= {"tailLines": str(tail)} if tail is not None else {}
    return f"/api/v1/namespaces/{path_part(namespace)}/pods/{path_part(log.pod)}/log?{urlencode(query)}"
