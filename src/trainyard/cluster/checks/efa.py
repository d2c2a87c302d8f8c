"""Compare the EFA interfaces that each node can allocate with the instance catalogue and with its peers.

One interface less than in the catalogue comes from a common launch template whose first card is a plain
network interface. That is not a finding if all nodes of the type are like this. A single node needs no EFA.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

from trainyard.cluster.check_definition import Check, Facts, list_names
from trainyard.cluster.checks.device_plugin import describe_daemon, efa_plugins
from trainyard.cluster.fitness import Fitness
from trainyard.cluster.snapshot import EFA_DRIVER, MissingData
from trainyard.plan.finding import Finding
from trainyard.plan.instances import EFA, instance_called

INSTALL = "install the EFA device plugin (chart eks/aws-efa-k8s-device-plugin) at a pinned version"
_TEMPLATE = "attach EFA interfaces in the launch template of the node group (eksctl: efaEnabled: true)"


def judge(facts: Facts) -> Iterator[Finding]:
    if facts.job.nodes == 1:
        yield Finding.skipped("one node needs no network")
        return
    usable = [fitness for fitness in facts.fits if fitness.fit]
    if not usable:
        yield Finding.skipped("there is no fit node to check")
        return
    with_efa = [fitness for fitness in usable if fitness.expected_efa or fitness.efa]
    if not with_efa:
        yield Finding.skipped(f"{usable[0].node.instance_type or 'these nodes'}: the type has no EFA")
        return
    found = [
        *_missing(facts, with_efa),
        *_fewer_interfaces(facts, with_efa),
        *_excess_interfaces(facts, with_efa),
    ]
    yield from found
    if not found:
        counts = Counter(fitness.efa for fitness in with_efa)
        yield Finding.success(
            "; ".join(f"{nodes} nodes with {efa} interfaces" for efa, nodes in counts.items())
        )


def _missing(facts: Facts, nodes: list[Fitness]) -> Iterator[Finding]:
    without = [fitness for fitness in nodes if not fitness.efa]
    if not without:
        return
    listed = list_names(fitness.node.name for fitness in without)
    if facts.snapshot.has_driver(EFA_DRIVER):
        yield Finding.skipped(
            f"not checked: {listed}: the interfaces that the driver {EFA_DRIVER} offers are not counted"
        )
        return
    rest = len(nodes) - len(without)
    expected = without[0].expected_efa
    text = f"{listed}: no {EFA}, {expected} expected for {without[0].node.instance_type}"
    why, fix = _explain_missing_efa(facts)
    known = instance_called(without[0].node.instance_type)
    # Without EFA types with GPUDirect RDMA train far below the speed that is paid for.
    if known and known.rdma and rest < facts.job.nodes and not facts.snapshot.may_grow:
        yield Finding.error(f"{text}; {why}. The nodes would train over TCP", fix)
    else:
        yield Finding.warning(f"{text}; {why}", fix)


def _explain_missing_efa(facts: Facts) -> tuple[str, str]:
    daemons = facts.snapshot.daemons
    if isinstance(daemons, MissingData):
        return "DaemonSets could not be read", "check whether the EFA device plugin runs there"
    plugins = efa_plugins(daemons)
    if not plugins:
        return "no EFA device plugin was found", INSTALL
    found = plugins[0]
    if found.available < found.wanted:
        return describe_daemon(found), f"kubectl -n {found.namespace} describe daemonset {found.name}"
    return f"{describe_daemon(found)}, so the instances have no EFA interfaces attached", _TEMPLATE


def _fewer_interfaces(facts: Facts, nodes: list[Fitness]) -> Iterator[Finding]:
    for name, group in _by_type(fitness for fitness in nodes if fitness.efa):
        most, expected = max(fitness.efa or 0 for fitness in group), group[0].expected_efa
        if odd := [fitness for fitness in group if fitness.efa != most]:
            yield _judge_odd_nodes(facts, odd, group, most)
        if expected and most < expected - 1:
            text = f"all {len(group)} nodes of {name}: {most} of {expected} EFA interfaces"
            yield Finding.warning(text, _TEMPLATE)


def _excess_interfaces(facts: Facts, nodes: list[Fitness]) -> Iterator[Finding]:
    """Yield nodes that offer more interfaces than their type has: pods could not use all of them."""
    known = [(fitness, fitness.expected_efa) for fitness in nodes if fitness.expected_efa is not None]
    excess = [fitness for fitness, expected in known if (fitness.efa or 0) > expected]
    enough = len(nodes) - len(excess) >= facts.job.nodes
    for name, group in _by_type(excess):
        listed = list_names(fitness.node.name for fitness in group)
        yield (Finding.warning if enough else Finding.error)(
            f"{listed}: {_counts(group)} EFA interfaces, and {name} has {group[0].expected_efa}",
            "check that one EFA device plugin runs on each node, and that it counts each interface once",
        )


def _by_type(nodes: Iterable[Fitness]) -> Iterable[tuple[str, list[Fitness]]]:
    found: dict[str, list[Fitness]] = {}
    for fitness in nodes:
        found.setdefault(fitness.node.instance_type, []).append(fitness)
    return found.items()


def _counts(nodes: Iterable[Fitness]) -> str:
    return ", ".join(str(count) for count in sorted({fitness.efa or 0 for fitness in nodes}))


def _judge_odd_nodes(facts: Facts, odd: list[Fitness], group: list[Fitness], most: int) -> Finding:
    nodes = list_names(fitness.node.name for fitness in odd)
    text = f"{nodes}: {_counts(odd)} EFA interfaces, its peers have {most}"
    fix = "have the node replaced, or keep the job off it; the slowest node limits the speed of all"
    if len(group) - len(odd) >= facts.job.nodes:
        return Finding.warning(text, fix)
    return facts.error_unless_enough(text, fix)


CHECK = Check("efa", "EFA interfaces that can be allocated on each node", judge)
