"""The report as data: the same figures as the text, in base units, under the names of `metrics.jsonl`.

Unknown figures are absent.
"""

from typing import Any

from trainyard.report.dashboard.text import utc
from trainyard.report.facts.curve import thin_curve
from trainyard.report.facts.figures import figure_values
from trainyard.report.facts.run_facts import RunFacts

SCHEMA_VERSION = 1
_BUCKETS = 50


def json_report(facts: RunFacts) -> dict[str, Any]:
    """Everything that the reports know about the run, ready for `json.dumps`."""
    report = {
        "schema_version": SCHEMA_VERSION,
        "status": str(facts.state.status),
        "status_detail": facts.state.detail or None,
        "failure": facts.outcome.get("failure"),
        "timestamp": None if facts.timestamp is None else utc(facts.timestamp),
        "run_id": facts.name,
        "run_number": facts.run_number,
        "run_directory": str(facts.directory),
        "git_sha": facts.commit,
        "git_dirty": facts.dirty if facts.commit else None,
        **figure_values(facts),
        "alerts": [alert.record() for alert in facts.alerts],
        "curves": {name: thin_curve(facts.curve(name), _BUCKETS).to_json() for name in facts.figures},
        "checkpoints": [
            {
                "step": c.step,
                "path": str(c.path),
                "bytes": c.size,
                "files": c.files,
                "created": utc(c.created),
            }
            for c in facts.checkpoints
        ],
        "proof": _proof(facts),
    }
    return {key: value for key, value in _drop_unknown(report).items() if value not in ({}, [])}


def _proof(facts: RunFacts) -> dict[str, Any] | None:
    if facts.proof is None:
        return None
    parts = [
        _drop_unknown({"name": p.name, "passed": p.passed, "evidence": p.evidence, "fix": p.next_step})
        | ({} if p.is_judged else {"is_judged": False})
        for p in facts.proof.parts
    ]
    figures = [
        _drop_unknown(
            {"name": f.name, "value": f.value, "baseline": f.baseline, "threshold": f.threshold or None}
        )
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
