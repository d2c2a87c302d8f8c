"""The tables of the HTML report: checkpoints, provenance and events; an empty text where nothing is known."""

from collections.abc import Iterable
from html import escape
from typing import Any

from trainyard.report.dashboard.text import utc
from trainyard.report.facts.history import finite_or_none
from trainyard.report.facts.quantities import format_data_files, format_scaled, format_size
from trainyard.report.facts.run_facts import RunFacts
from trainyard.run.records import Row

_EVENTS = 200


def checkpoint_table(facts: RunFacts) -> str:
    """The complete checkpoints, newest first."""
    rows = [
        f'<tr><td class="figure">{c.step:,}</td><td class="figure">{escape(format_size(c.size))}</td>'
        f'<td class="figure">{c.files}</td><td class="fixed">{utc(c.created)}</td>'
        f'<td class="fixed">{_code(str(c.path))}</td></tr>'
        for c in reversed(facts.checkpoints)
    ]
    if not rows:
        return ""
    heads = (
        '<th class="figure">step</th><th class="figure">size</th><th class="figure">files</th>'
        "<th>saved</th><th>where</th>"
    )
    return _scrollable_table(f"<thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody>")


def provenance_table(facts: RunFacts) -> str:
    """The inputs of the run, by hash where there is one."""
    rows = [
        f"<tr><th>{escape(name)}</th><td>{value}</td></tr>" for name, value in _provenance(facts) if value
    ]
    return f"<table><tbody>{''.join(rows)}</tbody></table>" if rows else ""


def event_table(facts: RunFacts) -> str:
    """The last events, oldest first."""
    rows = [_event(event) for event in facts.events[-_EVENTS:]]
    return _scrollable_table(f"<tbody>{''.join(rows)}</tbody>") if rows else ""


def _provenance(facts: RunFacts) -> Iterable[tuple[str, str]]:
    git, data, hardware = facts.section("git"), facts.section("data"), facts.section("hardware")
    if facts.commit:
        difference = git.get("diff_sha256", "not on record")
        tree = f" (dirty, difference {difference})" if facts.dirty else " (clean)"
        yield "commit", _code(facts.commit) + escape(tree)
    yield "branch", escape(str(git.get("branch", "")))
    yield "lock", _code(facts.run.get("lock_sha256"))
    yield "config", _code(facts.run.get("config_sha256"))
    yield "data", escape(_data(data)) + (" " if data else "") + _code(data.get("fingerprint"))
    yield "seed", escape(str(facts.run.get("seed", "")))
    yield "image", _code(facts.run.get("image_digest"))
    yield "parent", _code(facts.section("parent").get("checkpoint"))
    parameters = finite_or_none(facts.section("plan").get("parameters"))
    yield "parameters", "" if parameters is None else format_scaled(parameters)
    yield "hardware", escape(_join(hardware, ("device_name", "device", "platform")))
    yield "software", escape(_software(hardware))
    workflow = _join(facts.section("ci"), ("repository", "workflow", "run_id", "event", "actor"))
    yield "workflow", escape(workflow)
    yield "weights", _code(facts.weights_sha256)


def _data(data: Any) -> str:
    tokens = finite_or_none(data.get("train_tokens"))
    parts = [
        str(data.get("name") or ""),
        format_data_files(data, parts=True),
        f"{format_scaled(tokens)} tokens to train on" if tokens else "",
    ]
    return ", ".join(part for part in parts if part)


def _software(hardware: Any) -> str:
    names = {"python": "Python", "torch": "torch", "cuda": "CUDA", "driver": "driver", "threads": "threads"}
    return ", ".join(f"{label} {hardware[key]}" for key, label in names.items() if hardware.get(key))


def _join(section: Any, keys: tuple[str, ...]) -> str:
    return ", ".join(dict.fromkeys(str(section[key]) for key in keys if section.get(key)))


def _event(event: Row) -> str:
    moment, step = finite_or_none(event.get("time")), finite_or_none(event.get("step"))
    name = str(event.get("event", "")).replace("_", " ")
    rest = {key: value for key, value in event.items() if key not in ("event", "time", "step")}
    details = ", ".join(f"{key} {value}" for key, value in rest.items())
    return (
        f'<tr><td class="fixed">{"" if moment is None else utc(moment)}</td>'
        f'<td class="figure">{"" if step is None else f"{step:,.0f}"}</td>'
        f'<td class="fixed">{escape(name)}</td><td>{escape(details)}</td></tr>'
    )


def _scrollable_table(table: str) -> str:
    return f'<div class="scroll"><table>{table}</table></div>'


def _code(value: object) -> str:
    return f"<code>{escape(value)}</code>" if isinstance(value, str) and value else ""
