"""The report as data: the same figures as the text, in base units, under the names of `metrics.jsonl`.

Unknown figures are absent.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainyard.report.dashboard.text import utc
from trainyard.report.facts.curve import thin_curve
from trainyard.report.facts.figures import FigureGroup, figure_values
from trainyard.report.facts.history import CURVES, MetricsHistory
from trainyard.report.facts.run_facts import RunFacts
from trainyard.report.facts.status import RunState, Status

_SCHEMA = 1
_BUCKETS = 50


def json_report(facts: RunFacts) -> dict[str, Any]:
    """Everything that the reports know about the run, ready for `json.dumps`."""
    report = {
        "schema": _SCHEMA,
        "status": str(facts.state.status),
        "status_detail": facts.state.detail or None,
        "failure": facts.outcome.get("failure"),
        "timestamp": None if facts.timestamp is None else utc(facts.timestamp),
        "run_id": facts.name,
        "run_number": facts.run_number,
        "run_directory": str(facts.directory),
        "git_sha": facts.commit,
        "git_dirty": facts.dirty if facts.commit else None,
        **{str(group): figure_values(facts, group) for group in FigureGroup},
        "alerts": [alert.record() for alert in facts.alerts],
        "curves": _curves(facts),
        "checkpoints": _checkpoints(facts),
        "proof": _proof(facts),
    }
    return {key: value for key, value in _drop_unknown(report).items() if value not in ({}, [])}


def dashboard_schema() -> dict[str, Any]:
    """The JSON Schema of the report. Every figure is a number, and absent when it is not known."""
    unknown = RunFacts(
        directory=Path(),
        run={},
        history=MetricsHistory(),
        events=[],
        checkpoints=(),
        proof=None,
        config_text=None,
        state=RunState(Status.EMPTY),
        timestamp=None,
    )
    number, text, truth = {"type": "number"}, {"type": "string"}, {"type": "boolean"}
    numbers = {"type": "array", "items": number}
    checkpoint = {"step": number, "path": text, "bytes": number, "files": number, "created": text}
    part = {"name": text, "holds": truth, "is_judged": truth, "evidence": text, "next_step": text}
    figure = {"name": text, "value": number, "was": number, "needs": text}
    curve = _object({"steps": numbers, "values": numbers}, ["steps", "values"])
    properties: dict[str, Any] = {
        "schema": {"const": _SCHEMA},
        "status": {"enum": [str(status) for status in Status]},
        "status_detail": text,
        "failure": {"type": "object"},
        "timestamp": text,
        "run_id": text,
        "run_number": {"type": ["integer", "string"]},
        "run_directory": text,
        "git_sha": text,
        "git_dirty": truth,
        **{
            str(group): _object(dict.fromkeys(figure_values(unknown, group), number)) for group in FigureGroup
        },
        "curves": _object(dict.fromkeys(CURVES, curve)),
        "checkpoints": {"type": "array", "items": _object(checkpoint, list(checkpoint))},
        "proof": _object(
            {
                "proven": truth,
                "parts": {"type": "array", "items": _object(part)},
                "compared_with": text,
                "figures": {"type": "array", "items": _object(figure, ["name"])},
            },
            ["proven", "parts"],
        ),
    }
    return {"title": "Dashboard", **_object(properties, ["schema", "status", "run_id", "run_directory"])}


def _object(properties: dict[str, Any], required: Sequence[str] = ()) -> dict[str, Any]:
    shape = {"type": "object", "properties": properties, "additionalProperties": False}
    return shape | ({"required": list(required)} if required else {})


def _curves(facts: RunFacts) -> dict[str, Any]:
    """The curves that have values, reduced to the lowest and highest value of each stretch."""
    found = {name: thin_curve(facts.curve(name), _BUCKETS) for name in CURVES}
    return {
        name: {"steps": [p.step for p in points], "values": [float(f"{p.value:.6g}") for p in points]}
        for name, points in found.items()
        if points
    }


def _checkpoints(facts: RunFacts) -> list[dict[str, Any]]:
    return [
        {"step": c.step, "path": str(c.path), "bytes": c.size, "files": c.files, "created": utc(c.created)}
        for c in facts.checkpoints
    ]


def _proof(facts: RunFacts) -> dict[str, Any] | None:
    if facts.proof is None:
        return None
    parts = [
        _drop_unknown({"name": p.name, "holds": p.holds, "evidence": p.evidence, "next_step": p.next_step})
        | ({} if p.is_judged else {"is_judged": False})
        for p in facts.proof.parts
    ]
    figures = [
        _drop_unknown({"name": f.name, "value": f.value, "was": f.was, "needs": f.needs or None})
        for f in facts.proof.figures
    ]
    proof = {"proven": facts.proof.proven, "parts": parts}
    return proof | ({"compared_with": facts.proof.compared_with, "figures": figures} if figures else {})


def _drop_unknown(value: dict[str, Any]) -> dict[str, Any]:
    """`value` without the entries that are None, here and in nested objects."""
    return {
        key: _drop_unknown(inner) if isinstance(inner, dict) else inner
        for key, inner in value.items()
        if inner is not None
    }
