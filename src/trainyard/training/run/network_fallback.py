"""Record when machines with EFA or InfiniBand communicate over TCP, according to NCCL's own log.

    NCCL ──> logs/nccl-rank-R.log ──after the first step──> event `network_degraded`

It only applies to runs over several machines: on one machine, NCCL needs no network. It only warns and never
fails a run.
"""

import os
import re
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from trainyard.run.atomic_files import make_folder
from trainyard.training.run.nccl_log import Fabric, fallback, read_network
from trainyard.training.run.run_context import RunContext

_LOG = "NCCL_DEBUG_FILE"
_EFA_TYPES = re.compile(r"p(?:4de?|5e?n?|6-\w+)\.\w+")
"""EC2 instance types whose EFA supports RDMA, for which users pay."""
_AMAZON = "0x1d0f"


def keep_nccl_log(logs: Path, device: str, environment: MutableMapping[str, str] = os.environ) -> None:
    """Make NCCL write its log into `logs`, unless the user has configured NCCL's log.

    Call it before the process group is created.
    """
    if device != "cuda" or not _several_machines(environment):
        return
    if "NCCL_DEBUG" in environment or _LOG in environment:
        return
    make_folder(logs)  # if the folder is missing, NCCL writes to the terminal
    environment.update({"NCCL_DEBUG": "INFO", _LOG: _as_told(_log_path(logs, environment))})


def record_fallback(
    segment: RunContext, environment: Mapping[str, str] = os.environ, system: Path = Path("/sys")
) -> None:
    """Record `network_degraded` if the log of any process shows it. All processes call it together."""
    if segment.device.type != "cuda" or not _several_machines(environment):
        return
    log = _log_path(segment.directory.logs, environment)
    kept = environment.get(_LOG) == _as_told(log)  # otherwise it may be an earlier segment's
    found = segment.world.gather(_own_fallback(log, system) if kept else "")
    ranks = [rank for rank, reason in enumerate(found) if reason]
    if ranks:
        reason = f"TCP between machines on {_named(ranks)}, {found[ranks[0]]}"
        segment.event("network_degraded", step=segment.state.step, ranks=ranks, reason=reason)


def _own_fallback(log: Path, system: Path) -> str:
    """The evidence in a log that this machine's fabric is not used; empty when there is none."""
    fabric = fabric_of(system)
    try:
        with log.open(encoding="utf-8", errors="replace") as lines:
            why = fallback(read_network(lines), fabric)
    except OSError:
        return ""
    if why is None:
        return ""
    return f"though the machine has {fabric}" + (f": {why}" if why else "")


def fabric_of(system: Path) -> Fabric | None:
    """The fabric that this machine certainly has according to sysfs; None if it has none or it is unclear."""
    if _EFA_TYPES.fullmatch(_text(system / "class/dmi/id/product_name")):
        return Fabric.EFA
    for device in sorted((system / "class/infiniband").glob("*")):
        if _text(device / "device/vendor") == _AMAZON:
            return Fabric.EFA
        ports = device.glob("ports/*")
        if any(_text(p / "link_layer") == "InfiniBand" and "ACTIVE" in _text(p / "state") for p in ports):
            return Fabric.INFINIBAND
    return None


def _several_machines(environment: Mapping[str, str]) -> bool:
    here = int(environment.get("LOCAL_WORLD_SIZE", "1"))
    return int(environment.get("WORLD_SIZE", "1")) > here


def _log_path(logs: Path, environment: Mapping[str, str]) -> Path:
    return logs / f"nccl-rank-{environment.get('RANK', '0')}.log"


def _as_told(log: Path) -> str:
    """Escape the path for NCCL, in which `%` begins a placeholder."""
    return str(log).replace("%", "%%")


def _named(ranks: list[int]) -> str:
    """Text for ranks: `rank 3`, `ranks 0, 8` or `16 ranks`."""
    if len(ranks) > 4:
        return f"{len(ranks):,} ranks"
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
