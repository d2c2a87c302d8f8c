"""Check, while a program trains on several machines, which network joins them.

The first node reads the NCCL logs of all nodes, which share the run directory, and records what they show.
The others read their own logs, and end their part of the program at a fallback to TCP.
"""

import logging
from fnmatch import fnmatch

from trainyard.run.directory import RunDirectory
from trainyard.run.launch_environment import NodeLauncher
from trainyard.run.records import append_event
from trainyard.watch.network_record import NetworkFollower, NetworkWatch, nccl_warnings
from trainyard.watch.network_verdict import Expectation

LOG = logging.getLogger(__name__)
FALLBACK = "tcp-fallback"
# Seconds between two reads of the logs of NCCL while the program runs.
_SECONDS = 5.0
_MOST_WARNINGS = 10


class NodeNetwork:
    """The network of a program's machines, as a node sees it."""

    def __init__(
        self, directory: RunDirectory, node: NodeLauncher, expected: Expectation, *, on_fallback: str
    ) -> None:
        """`on_fallback` is that of section compute: `stop`, or `warn`."""
        self._directory, self._node, self._ends = directory, node, on_fallback == "stop"
        self._own = f"nccl-node-{node.log_name}-*.log"
        pattern = self._own if node.rank else "nccl-node-*.log"
        self._logs = NetworkFollower(NetworkWatch(expected), lambda: directory.logs.glob(pattern))
        self._last = 0.0
        self.fallback: tuple[str, str] | None = None
        """Why the program must end because it uses TCP, and the fix."""

    def remove_earlier_logs(self) -> None:
        """Remove this node's logs of earlier attempts, and those of nodes that the run no longer has."""
        for log in self._directory.logs.glob("nccl-node-*.log"):
            number = log.name.split("-")[2]
            is_of_no_node = number.isdecimal() and int(number) >= self._node.nodes
            if fnmatch(log.name, self._own) or (is_of_no_node and not self._node.rank):
                log.unlink(missing_ok=True)

    def show_warnings(self) -> None:
        """Log the last warnings from NCCL's own log on this node, after the program failed."""
        for line in nccl_warnings(self._directory.logs.glob(self._own))[-_MOST_WARNINGS:]:
            LOG.error("%s", line)

    def check(self, step: int, *, now: float, is_over: bool = False) -> str | None:
        """Record which network joins the machines; return a reason if the program must stop."""
        if self.fallback is not None or not (is_over or now - self._last >= _SECONDS):
            return None
        self._last = now
        if (event := self._logs.poll(is_over=is_over)) is None:
            return None
        watch, is_first = self._logs.watch, not self._node.rank
        if is_first:
            append_event(self._directory.events_file, "network", step=step, **event)
        if (reason := watch.trouble(event)) is None:
            shown, world = event["ranks_seen"], event["world_size"]
            LOG.info("network: %s, channels of %s of %s ranks", event["verdict"], shown, world)
            return None
        ends = self._ends and watch.fallback(event) is not None
        LOG.log(logging.ERROR if ends else logging.WARNING, "%s; fix: %s", reason, event["fix"])
        if is_first:
            append_event(self._directory.events_file, "network_degraded", step=step, reason=reason)
        if not ends:
            return None
        self.fallback = (reason, event["fix"])
        return FALLBACK
