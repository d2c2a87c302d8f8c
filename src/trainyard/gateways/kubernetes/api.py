"""The API server of a cluster: requests, watches of its lists, and commands in its containers."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trainyard.gateways.kubernetes.api_requests import ApiRequests
from trainyard.gateways.kubernetes.list_watch import Report, Watch

if TYPE_CHECKING:
    from trainyard.gateways.kubernetes.pod_exec import Exec
    from trainyard.jobs.state.pod_facts import Place


class Api(ApiRequests):
    """The API server of a cluster."""

    def watch(
        self,
        path: str,
        report: Callable[[Report], None],
        *,
        source: str,
        keep: Callable[[Mapping[str, Any]], Any],
        **query: str,
    ) -> Watch:
        """Return a watch of a list, which is still to be started."""
        return Watch(self, path, report, source=source, keep=keep, **query)

    def execute(self, place: "Place", command: Sequence[str], *, stdin: bytes = b"") -> "Exec":
        """Run a command in a container. Raises the errors of `pod_exec.Exec`."""
        # Every command imports this module; only the extra `cluster` has the client of WebSockets.
        from trainyard.gateways.kubernetes.pod_exec import Exec

        return Exec(self, place, command, stdin=stdin)
