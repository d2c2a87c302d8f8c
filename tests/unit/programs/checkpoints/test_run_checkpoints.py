"""The checkpoints of one run, and those that other runs have left."""

from pathlib import Path

from trainyard.programs.run_checkpoints import numbered_of_before


def test_folders_with_numbers_of_another_run_are_found(tmp_path: Path) -> None:
    def older(before: float) -> Path | None:
        return numbered_of_before(tmp_path, "out/*", before=before, ignored=())

    assert older(1e12) is None
    for name in ("checkpoint-20", "checkpoint-100", "step-500"):
        folder = tmp_path / "out" / name
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
        (folder / "config.json").write_text("{}")
        (folder / "trainer_state.json").write_text(f'{{"global_step": {name.split("-")[1]}}}')
    found = older(1e12)
    assert found is not None and found.name == "checkpoint-100"
    assert older(1.0) is None
