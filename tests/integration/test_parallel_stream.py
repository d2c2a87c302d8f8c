"""A stream on two processes, resumed on one. CPU, gloo."""

import json
from pathlib import Path

import pytest
from tests.integration.trainer_runs import TrainerRuns

STEPS = 10
SETTINGS = (
    *("training.batch_size=2", f"training.max_steps={STEPS}", "training.warmup_steps=0"),
    *("training.lr_scheduler=constant", "compute.strategy=fsdp", "monitoring.log_steps=1"),
    *("data.sequence_length=32"),
    *("data.train_path=null", "data.validation_path=null"),
    *("data.hugging_face.validation_split=null", "data.hugging_face.shuffled_sequences=12"),
)


@pytest.mark.slow
def test_a_stream_of_two_processes_resumes_on_one_with_the_numbers_of_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "texts").mkdir()
    rows = [{"text": f"text {number} of " + "some words " * (number % 11)} for number in range(700)]
    (tmp_path / "texts" / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    runs = TrainerRuns(tmp_path, *SETTINGS, f"data.hugging_face.dataset={tmp_path}/texts")

    def losses(name: str, *settings: str, processes: int = 1) -> list[float]:
        code, errors = runs.finish(name, *settings, processes=processes)
        assert code == 0, errors
        return [row["loss"] for row in runs.rows(name)]

    complete = losses("complete", processes=2)
    losses("cut", "training.max_steps=5", processes=2)
    resumed = losses("cut", "training.gradient_accumulation_steps=2")
    assert resumed == pytest.approx(complete, rel=2e-5)
    assert len(complete) == STEPS
