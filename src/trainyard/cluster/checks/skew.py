"""Check clocks and versions: the server's clock against ours, the kubelets against the API server."""

import re
from collections.abc import Iterator

from trainyard.cluster.check_definition import Check, Facts, Outcome, list_names
from trainyard.cluster.snapshot import MissingData

CLOCK_WARNING, CLOCK_ERROR = 30.0, 300.0
"""In seconds. AWS refuses signatures whose clock is five minutes off."""
_OLDEST = 3
"""Minor releases that a kubelet may be behind (kubernetes.io/releases/version-skew-policy)."""


def judge(facts: Facts) -> Iterator[Outcome]:
    found = [*_clock(facts), *_versions(facts)]
    yield from found
    if not found:
        yield Outcome.success(f"clocks agree, kubelets fit {facts.snapshot.version}")


def _clock(facts: Facts) -> Iterator[Outcome]:
    offset = facts.snapshot.clock_offset
    if offset is None or abs(offset) < CLOCK_WARNING:
        return
    text = f"the server's clock is {abs(offset):.0f} s {'ahead of' if offset > 0 else 'behind'} ours"
    judge_it = Outcome.error if abs(offset) >= CLOCK_ERROR else Outcome.warning
    yield judge_it(text, "set the clock of this machine by NTP: tokens and signatures depend on it")


def _versions(facts: Facts) -> Iterator[Outcome]:
    server = _minor(facts.snapshot.version)
    if server is None or isinstance(facts.snapshot.nodes, MissingData):
        return
    minors = {fitness.node.name: _minor(fitness.node.kubelet) for fitness in facts.fits}
    newer = [name for name, minor in minors.items() if minor is not None and minor > server]
    older = [name for name, minor in minors.items() if minor is not None and minor < server - _OLDEST]
    for nodes, how in ((newer, "newer"), (older, f"more than {_OLDEST} releases older")):
        if nodes:
            text = f"{list_names(nodes)}: the kubelet is {how} than the API server ({facts.snapshot.version})"
            yield Outcome.warning(text, "update nodes and control plane to supported versions")


def _minor(version: str) -> int | None:
    match = re.match(r"v1\.(\d+)", version)
    return int(match[1]) if match else None


CHECK = Check("skew", "clocks and versions", judge)
