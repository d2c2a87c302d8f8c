"""The report as data: the same figures as the text, in base units, under the names of `metrics.jsonl`.

Unknown figures are absent.
"""

from typing import Any

from trainyard.report.dashboard.text import STEP_PARTS, epoch_seconds, step_in_epoch, utc
from trainyard.report.facts.run_facts import RunFacts

_SCHEMA = 1
_GPU = (
    *("gpu_memory_bytes", "gpu_memory_total_bytes", "gpu_memory_peak_bytes"),
    *("gpu_utilization_percent", "gpu_temperature_celsius"),
)
_STEP_TIMES = ("step_seconds", *(f"{part}_seconds" for part in (*STEP_PARTS, "checkpoint")))


def json_report(facts: RunFacts) -> dict[str, Any]:
    """Everything that the reports know about the run, ready for `json.dumps`."""
    spent, left = facts.training_seconds, facts.seconds_remaining
    last = facts.history.last
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
        "training_metrics": _training(facts),
        "gpu_resource_usage": {key: last.get(key) for key in _GPU},
        "performance_metrics": {
            "samples_per_second": last.get("samples_per_second"),
            "tokens_per_second": last.get("tokens_per_second"),
            "mfu": facts.mfu,
            **{key: last.get(key) for key in _STEP_TIMES},
            "seconds_remaining": left,
            "completion": facts.completion,
        },
        "timing": {
            "epoch_seconds": epoch_seconds(facts),
            "training_seconds": spent,
            "estimated_total_seconds": None if spent is None or left is None else spent + left,
        },
        "checkpoints": _checkpoints(facts),
        "proof": _proof(facts),
    }
    return {key: value for key, value in _known(report).items() if value not in ({}, [])}


def _training(facts: RunFacts) -> dict[str, Any]:
    last = facts.history.last
    return {
        "epoch": last.get("epoch"),
        "epochs": facts.epochs,
        "step": facts.step,
        "steps": facts.steps,
        "step_in_epoch": step_in_epoch(facts),
        "steps_per_epoch": facts.steps_per_epoch,
        "first_loss": facts.first_loss,
        "loss": facts.loss,
        "val_loss": facts.validation_loss,
        "first_reward": facts.first_reward,
        "reward": facts.reward,
        "bits_per_byte": facts.bits_per_byte,
        "learning_rate": last.get("learning_rate"),
        "grad_norm": last.get("grad_norm"),
        "tokens": last.get("tokens"),
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
        _known({"name": p.name, "holds": p.holds, "evidence": p.evidence, "next_step": p.next_step})
        for p in facts.proof.parts
    ]
    return {"proven": facts.proof.proven, "parts": parts}


def _known(value: dict[str, Any]) -> dict[str, Any]:
    """`value` without the entries that are None, here and in nested objects."""
    return {
        key: _known(inner) if isinstance(inner, dict) else inner
        for key, inner in value.items()
        if inner is not None
    }
