from pathlib import Path

from trainyard.programs.inputs import named_files


def test_the_files_that_a_command_names_are_its_inputs_but_for_what_programs_write(tmp_path: Path) -> None:
    files = ("python", "train.py", "exp7.yaml", "a=b.json", "model.pt", "run.log", "data.csv", "rows.jsonl")
    for name in files:
        (tmp_path / name).write_text("x")
    (tmp_path / "folder").mkdir()
    words = ["python", "train.py", "--config=exp7.yaml", "a=b.json", "--out", "model.pt", "--log=run.log"]
    words += ["--rows", "./rows.jsonl", "folder", "data.csv", "none.yaml", "--lr=0.1", "", "x" * 5000, "\0"]
    found = {path.name for path in named_files(words, tmp_path, metrics="rows.jsonl")}
    assert found == {"train.py", "exp7.yaml", "a=b.json", "data.csv"}
