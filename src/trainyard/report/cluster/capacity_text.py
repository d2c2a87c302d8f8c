"""What is free in a cluster, for a terminal: the answer first, then nodes, then who holds the rest."""

from collections.abc import Mapping, Sequence
from typing import Any

from trainyard.report.cluster.table import table

Json = Mapping[str, Any]
_MOST_HOLDERS = 10
_MOST_NODES = 40


def capacity_lines(data: Json, *, width: int) -> list[str]:
    """The lines of `capacity`."""
    capacity = data["capacity"]
    lines = [heading(data), "", *_answer(capacity, data["plan"])]
    shown = capacity["nodes"][:_MOST_NODES]
    lines += ["", *node_table(shown, width=width)]
    if len(capacity["nodes"]) > len(shown):
        lines.append(f"… and {len(capacity['nodes']) - len(shown)} more nodes; --json lists them all")
    for title, name in (("held by", "holders"), ("waiting", "waiting")):
        if capacity[name]:
            lines += ["", *_holders(title, capacity[name], width=width)]
    return lines


def node_lines(data: Json, *, width: int) -> list[str]:
    """The lines of `nodes`."""
    rows = data["nodes"]
    if not rows:
        return [heading(data), "", "No node of this kind was found."]
    return [heading(data), "", *node_table(rows, width=width)]


def heading(data: Json) -> str:
    """Which cluster, and for what."""
    cluster = data["cluster"]
    name = cluster["context"] or cluster["server"]
    return f"{name} · Kubernetes {cluster['version']} · {data['plan']['shape']}"


def _answer(capacity: Json, plan: Json) -> list[str]:
    wanted, free, places = capacity["nodes_wanted"], capacity["places_free"], capacity["places"]
    gpus = f"{capacity['gpus_free']} of {capacity['gpus']} GPUs free"
    whole = len(capacity["whole_nodes_free"])
    answers = {
        "now": f"It fits now: {free} places for {wanted}, {gpus}, {whole} nodes wholly free.",
        "later": f"It does not fit now: {free} places for {wanted}, {gpus}; {places} when all is given back.",
        "never": f"It cannot fit: {places} places for {wanted}, even if nothing ran there ({gpus}).",
        "unknown": f"Whether it fits is not known: {capacity['unknown']}.",
    }
    lines = [answers[capacity["fits"]]]
    if capacity["may_grow"] and capacity["fits"] != "now":
        lines.append("Karpenter may add nodes: whether it can get them is not known here.")
    if plan["queue"]:
        lines.append(f"Queue {plan['queue']}: {capacity['queue']['when']}. {capacity['queue']['evidence']}.")
    return lines


def node_table(nodes: Sequence[Json], *, width: int) -> list[str]:
    """A line for each node: what it has, what is free, what is wrong."""
    rows = [
        (
            node["name"],
            node["instance_type"] or "-",
            node["zone"] or "-",
            _of(node["gpus_free"], node["gpus"]),
            _of(node["efa_free"], node["efa"]),
            "; ".join([*node["problems"], *node["doubts"]]) or "fit",
        )
        for node in nodes
    ]
    return table(("node", "type", "zone", "GPUs free", "EFA free", "state"), rows, width=width)


def _of(free: int, total: int | None) -> str:
    return "-" if total is None else f"{free} of {total}"


def _holders(title: str, holders: Sequence[Json], *, width: int) -> list[str]:
    rows = [
        (f"{h['gpus']}", f"{h['nodes']}", f"{h['priority']}", f"{h['namespace']}/{h['owner']}")
        for h in holders[:_MOST_HOLDERS]
    ]
    lines = table(("GPUs", "nodes", "priority", title), rows, width=width)
    more = len(holders) - _MOST_HOLDERS
    return [*lines, f"… and {more} more"] if more > 0 else lines
