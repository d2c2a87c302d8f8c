"""Record which network joined the machines, and end a run that uses TCP where a faster network was expected.

    NCCL ──> logs/nccl-rank-R.log ──after the first step, and at the end──> event `network`
                                  ──sockets where EFA is──> event `network_degraded`, and the end

It only applies to runs over several machines: on one machine, NCCL needs no network. The caller passes in the
reader and judge of the logs (`Request.network`). `compute.on_fallback` decides whether the run ends.
"""

import os
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any

from trainyard.errors import NetworkFallbackError
from trainyard.run.atomic_files import make_folder
from trainyard.run.checkpoint_retention import complete_steps
from trainyard.run.failure import Failure, FailureKind
from trainyard.run.launch_environment import nccl_log_variables
from trainyard.training.checkpoint.failure_advice import build_error
from trainyard.training.run.run_context import RunContext


def keep_nccl_log(logs: Path, environment: MutableMapping[str, str] = os.environ) -> None:
    """Make NCCL write its log into `logs`, unless the user has configured NCCL's log.

    Call it before the process group is created. The log of an earlier segment is removed.
    """
    if not _has_several_machines(environment):
        return
    make_folder(logs)  # if the folder is missing, NCCL writes to the terminal
    log = _log_path(logs, environment)
    log.unlink(missing_ok=True)
    environment.update(nccl_log_variables(str(log).replace("%", "%%"), environment))


def record_network(
    context: RunContext, before: Mapping[str, Any] | None = None, environment: Mapping[str, str] = os.environ
) -> dict[str, Any] | None:
    """Record which network the logs of all processes show, unless `before` says the same; return the event.

    All processes call it together. Raises NetworkFallbackError on all of them if TCP is used where a faster
    network was expected, and `compute.on_fallback` is `stop`.
    """
    network = context.request.network
    if network is None or not _has_several_machines(environment):
        return None
    parts = context.world.gather(network.read([_log_path(context.directory.logs, environment)]))
    if not any(part.processes for part in parts):
        return None
    found = network.event(parts)
    if before is None or before["facts"] != found["facts"]:
        context.record_event("network", step=context.state.step, **found)
        if (reason := network.trouble(found)) is not None:
            context.record_event("network_degraded", step=context.state.step, reason=reason)
    fallback = network.fallback(found)
    if fallback is not None and context.config.compute.on_fallback == "stop":
        fix = f"{found['fix'][:1].upper()}{found['fix'][1:]}. To train over TCP, which is slower"
        newest = max(complete_steps(context.directory), default=None)
        changes = {"compute.network": "tcp"}
        failure = Failure(FailureKind.TCP_FALLBACK, context.state.step, fix, changes, newest)
        raise build_error(NetworkFallbackError, f"{fallback}.", failure, context.directory)
    return found


def _has_several_machines(environment: Mapping[str, str]) -> bool:
    here = int(environment.get("LOCAL_WORLD_SIZE", "1"))
    return int(environment.get("WORLD_SIZE", "1")) > here


def _log_path(logs: Path, environment: Mapping[str, str]) -> Path:
    return logs / f"nccl-rank-{environment.get('RANK', '0')}.log"
