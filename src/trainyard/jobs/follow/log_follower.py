"""Follow the logs of a job's pods while pods come and go, from the start of a container.

    watch of the pods ──a container started──> a thread that reads its log ──lines──> sink

When the operator deletes a pod and creates it again, the old log is lost, so logs are read while they are
written. After a broken connection, reading continues after the last line.
"""

import logging
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from trainyard.cluster.object_path import path_part
from trainyard.errors import ServiceError, ServiceTroubleError
from trainyard.jobs.follow.pod_logs import ContainerLog, container_logs, log_path

if TYPE_CHECKING:
    from trainyard.gateways.kubernetes.api import Api
    from trainyard.gateways.kubernetes.api_requests import Stream
    from trainyard.gateways.kubernetes.list_watch import Report

MOST_FOLLOWED = 200
"""Logs that are followed at once, each with a connection and a thread."""
CONNECTIONS = MOST_FOLLOWED + 4
"""Connections that the API of a follower needs, with those of its watch."""
_SILENCE = 3600.0
"""A program may print nothing for this long."""
_PAUSE = 1.0
_END_SECONDS = 5.0
_STAMP = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
_ZONE = re.compile(r"(Z|[+-]\d\d:\d\d)$")
"""The time zone of a line, which is the same for all lines of a node."""
_logger = logging.getLogger(__name__)

Sink = Callable[[ContainerLog, bytes], None]


class LogFollower:
    """Reads the logs of all pods with a label while it is entered, including pods that start later."""

    def __init__(self, api: "Api", namespace: str, selector: str, sink: Sink) -> None:
        """`sink` is called by several threads, one call at a time.

        `api` needs CONNECTIONS.
        """
        self._api, self._namespace, self._sink = api, namespace, sink
        self._lock = threading.Lock()
        self._followed: set[tuple[str, str, int]] = set()
        self._alive: set[tuple[str, str, int]] = set()
        """Logs whose container ran when it was last seen."""
        self._streams: dict[tuple[str, str, int], Stream] = {}
        self._last: dict[tuple[str, str, int], tuple[str, int]] = {}
        """For each log: the time of the last line passed on, and how many lines with this time were."""
        self._threads: list[threading.Thread] = []
        self._over = threading.Event()
        path = f"/api/v1/namespaces/{path_part(namespace)}/pods"
        self._watch = api.watch(path, self._apply_report, source="logs", keep=dict, labelSelector=selector)

    def __enter__(self) -> "LogFollower":
        self._watch.start()
        return self

    def __exit__(self, _kind: object, error: object, _trace: object) -> None:
        self.end(_END_SECONDS if error is None else 0.0)

    def end(self, seconds: float) -> None:
        """Read the open logs to their ends, for at most `seconds`."""
        self._watch.end()
        share = seconds / max(1, len(self._threads))
        for thread in self._threads:
            thread.join(max(0.05, share))
        self._over.set()
        with self._lock:
            streams = list(self._streams.values())
        for stream in streams:
            stream.end()

    def _apply_report(self, report: "Report") -> None:
        if report.news == "refused":
            _logger.warning("the pods may not be seen, so their logs are not followed: %s", report.error)
        elif report.error is not None:
            _logger.warning("the pods are not seen now, their logs come later: %s", report.error)
        if report.news == "deleted":
            return
        for log in container_logs(report.objects, previous=False):
            with self._lock:
                (self._alive.add if log.running else self._alive.discard)(log.key)
                if log.key in self._followed:
                    continue
                self._followed.add(log.key)
            self._follow(log)

    def _follow(self, log: ContainerLog) -> None:
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        if len(self._threads) >= MOST_FOLLOWED:
            _logger.warning(
                "the log of %s is not followed, because %d are followed already", log.pod, MOST_FOLLOWED
            )
            return
        thread = threading.Thread(target=self._read, args=(log,), name=f"log-{log.pod}", daemon=True)
        thread.start()
        self._threads.append(thread)  # only started threads can be joined

    def _read(self, log: ContainerLog) -> None:
        """Read to the end of the container, also over broken connections, without repeating lines."""
        while not self._over.is_set():
            try:
                self._read_on(log)
            except ServiceTroubleError as error:
                _logger.debug("the log of %s broke off: %s", log.pod, error)
            except ServiceError as error:
                _logger.debug("the log of %s has ended: %s", log.pod, error)
                return
            with self._lock:
                if log.key not in self._alive:
                    return
            self._over.wait(_PAUSE)

    def _read_on(self, log: ContainerLog) -> None:
        """Pass on the lines after the last one, until the connection ends or breaks."""
        last, count = self._last.get(log.key, ("", 0))
        stream = self._api.stream(log_path(self._namespace, log, follow=True, since=last), silence=_SILENCE)
        with self._lock:
            self._streams[log.key] = stream
        if self._over.is_set():
            stream.end()
        passed, repeated = _nanoseconds(last), 0
        for line in stream.lines():
            time, text = _split_time(line)
            if time and last and _nanoseconds(time) < passed:
                continue
            if time and last and _nanoseconds(time) == passed and repeated < count:
                repeated += 1
                continue
            with self._lock:
                self._sink(log, text)
            if time:
                before, equal = self._last.get(log.key, ("", 0))
                self._last[log.key] = (time, equal + 1 if time == before else 1)


def _split_time(line: bytes) -> tuple[str, bytes]:
    """Return the time of a line and its text; no time for a line of the kubelet itself."""
    stamp, _, text = line.partition(b" ")
    return (stamp.decode(), text) if _STAMP.fullmatch(stamp) else ("", line)


def _nanoseconds(time: str) -> tuple[str, str]:
    """Convert the time of a log line for comparison, because the number of its decimals varies."""
    seconds, _, digits = _ZONE.sub("", time).partition(".")
    return seconds, digits.ljust(9, "0")[:9]


def write_log_files(folder: Path, show: Sink) -> Sink:
    """Return a sink that also appends each line to the container's file in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    started: set[Path] = set()

    def write(log: ContainerLog, line: bytes) -> None:
        path = folder / log.file_name
        with path.open("ab" if path in started else "wb") as file:
            file.write(line + b"\n")
        started.add(path)
        show(log, line)

    return write
