"""Show the free capacity of a cluster on a terminal: the answer, then the nodes, then who uses the rest."""

from collections.abc import Mapping, Sequence
from typing import Any

from trainyard.report.facts.quantities import format_count
from trainyard.report.facts.table import wrap_table

Json = Mapping[str, Any]
_MOST_HOLDERS = 10
_MOST_NODES = 40


def capacity_lines(data: Json, *, width: int) -> list[str]:
    """The lines of `capacity`."""
    nodes = data["nodes"]
    lines = [heading(data), "", *_answer(data), "", *node_table(nodes[:_MOST_NODES], width=width)]
    if len(nodes) > _MOST_NODES:
        lines.append(f"… and {len(nodes) - _MOST_NODES} more nodes; --json lists them all")
    for title, name in (("held by", "holders"), ("waiting", "waiting")):
        if data[name]:
            lines += ["", *_holders(title, data[name], width=width)]
    return lines


def node_lines(data: Json, *, width: int) -> list[str]:
    """The lines of `nodes`."""
    rows = data["nodes"]
    title = heading(data, subject=format_count(len(rows), "node"))
    if not rows:
        return [title, "", "No node of this kind was found."]
    return [title, "", *node_table(rows, width=width)]


def heading(data: Json, *, subject: str = "") -> str:
    """The name of the cluster, and the subject of the lines below; by default the plan."""
    cluster = data["cluster"]
    name = cluster["context"] or cluster["server"]
    return f"{name} · Kubernetes {cluster['version']} · {subject or data['plan']['shape']}"


def _answer(data: Json) -> list[str]:
    wanted, whole = (format_count(n, "node") for n in (data["plan"]["nodes"], len(data["whole_nodes_free"])))
    free, places = (format_count(data[name], "place") for name in ("places_free", "places"))
    gpus = f"{data['gpus_free']} of {data['gpus']} GPUs free"
    answers = {
        "now": f"It fits now: {free} for {wanted}, {gpus}, {whole} completely free.",
        "later": f"It does not fit now: {free} for {wanted}, {gpus}; {places} once other jobs end.",
        "never": f"It cannot fit, even without other jobs: {places} for {wanted} ({gpus}).",
        "unknown": f"It is not known whether it fits: {data['unknown']}.",
    }
    lines = [answers[data["fits"]]]
    if data["may_grow"] and data["fits"] != "now":
        lines.append("Karpenter may add nodes, but it is not known whether the cloud has them.")
    if data["plan"]["queue"]:
        queue = data["queue"]
        lines.append(f"Queue {data['plan']['queue']}: {queue['when']}. {queue['evidence']}.")
    return lines


def node_table(nodes: Sequence[Json], *, width: int) -> list[str]:
    """A line for each node: its resources, the free ones, and its problems.

    A type or zone that all nodes share is shown once, above the table.
    """
    columns = {
        "node": [node["name"] for node in nodes],
        "type": [node["instance_type"] or "-" for node in nodes],
        "zone": [node["zone"] or "-" for node in nodes],
        "GPUs free": [_of(node["gpus_free"], node["gpus"]) for node in nodes],
        "EFA free": [_of(node["efa_free"], node["efa"]) for node in nodes],
        "status": ["; ".join([*node["problems"], *node["doubts"]]) or "fit" for node in nodes],
    }
    shared = [head for head in ("type", "zone") if len(nodes) > 1 and len(set(columns[head])) == 1]
    common = [f"{head} {columns.pop(head)[0]}" for head in shared]
    rows = list(zip(*columns.values(), strict=True))
    return [
        *([f"All nodes: {', '.join(common)}"] if common else []),
        *wrap_table(tuple(columns), rows, width=width),
    ]


def _of(free: int, total: int | None) -> str:
    return "-" if total is None else f"{free} of {total}"


def _holders(title: str, holders: Sequence[Json], *, width: int) -> list[str]:
    rows = [
        (f"{h['gpus']}", f"{h['nodes']}", f"{h['priority']}", f"{h['namespace']}/{h['owner']}")
        for h in holders[:_MOST_HOLDERS]
    ]
    lines = wrap_table(("GPUs", "nodes", "priority", title), rows, width=width)
    more = len(holders) - _MOST_HOLDERS
    return [*lines, f"… and {more} more"] if more > 0 else lines
