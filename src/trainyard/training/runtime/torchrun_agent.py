"""Change how torchrun watches the workers of a node in a run over several nodes.

When its own workers have ended, torchrun waits up to five minutes for the torchrun of every other node. After
a stop, this agent does not wait: the node that received the signal has ended, and the grace period runs.

torchrun watches only its own workers. When the first node is gone, this agent ends workers that do not notice
it; otherwise they would hold their GPUs until someone deletes the pod.

torchrun is silent while it waits for the other nodes, for ten minutes and more; this agent is not.
"""

import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from trainyard.errors import ExitCode
from trainyard.run.waiting import describe_wait

_POLL_SECONDS = 5.0
_ALONE_SECONDS = 60.0
"""Workers end by themselves within this time after the first node's end: their connection breaks, or they
save and stop."""


class FirstNodeLostError(Exception):
    """The first node is gone, and the workers of this one have not noticed."""


def node_agent() -> type[Any]:
    """Return torchrun's agent with the changes named above."""
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

    class Agent(LocalElasticAgent):
        _last_poll = _gone_since = 0.0

        def _rendezvous(self, worker_group: Any) -> None:
            spec = worker_group.spec
            if _is_alone(spec.rdzv_handler):
                super()._rendezvous(worker_group)
                return
            limit = getattr(spec.rdzv_handler, "timeout", None)
            seconds = limit.total_seconds() if isinstance(limit, timedelta) else None
            with describe_wait("the launchers of the other nodes", seconds, log=_log_wait):
                super()._rendezvous(worker_group)

        def _monitor_workers(self, worker_group: Any) -> Any:
            result = super()._monitor_workers(worker_group)
            if worker_group.group_world_size > 1 and result.state.name == "HEALTHY":
                self._require_first_node()
            return result

        def _require_first_node(self) -> None:
            now = time.monotonic()
            if now - self._last_poll < _POLL_SECONDS:
                return
            self._last_poll = now
            if _is_reachable(self._store):
                self._gone_since = 0.0
                return
            self._gone_since = self._gone_since or now
            if now - self._gone_since > _ALONE_SECONDS:
                self._shutdown()
                raise FirstNodeLostError

        def _exit_barrier(self) -> None:
            if not has_stopped_early():
                super()._exit_barrier()  # type: ignore[no-untyped-call]

    return Agent


def _is_alone(handler: Any) -> bool:
    """Return whether the rendezvous is known to have only one node."""
    return getattr(handler, "world_size", None) == 1


def _log_wait(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def _is_reachable(store: Any) -> bool:
    """Return whether the first node still serves the rendezvous store."""
    try:
        store.check(["trainyard-is-there"])
    except RuntimeError:  # torch.distributed.DistError is one
        return False
    return True


def has_stopped_early() -> bool:
    """Return whether a worker of this node has recorded that the run stopped early with a checkpoint."""
    folder = os.environ.get("TRAINYARD_EXIT_CODE_FOLDER")
    files = Path(folder).glob("exit-code-*") if folder else ()
    return any(path.read_text() == str(int(ExitCode.STOPPED)) for path in files)
