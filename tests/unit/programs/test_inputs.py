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


def test_a_text_for_a_shell_names_what_it_reads_and_not_what_it_writes(tmp_path: Path) -> None:
    for name in ("train.py", "a b.yaml", "in.txt", "out.txt", "more.txt", "copy.txt", "last.txt", "train.sh"):
        (tmp_path / name).write_text("x")
    text = "set -e; python train.py --config='a b.yaml' <in.txt >out.txt 2>>more.txt && cat in.txt"
    for option in ("-c", "-lc"):
        found = {
            path.name for path in named_files(["/bin/bash", option, f"{text} | tee -a copy.txt"], tmp_path)
        }
        assert found == {"train.py", "a b.yaml", "in.txt"}
    assert named_files(["bash", "-c", "cat 'last.txt"], tmp_path) == []
    assert [path.name for path in named_files(["bash", "train.sh", "-c"], tmp_path)] == ["train.sh"]
    assert named_files(["python", "-c", "open('last.txt')"], tmp_path) == []
