from pathlib import Path

from trainyard.programs.inputs import find_lock, imported_versions, lock_fault, named_files, other_versions


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


def test_a_file_that_leaves_a_version_open_is_no_lock(tmp_path: Path) -> None:
    conda = "name: a\nchannels: [conda-forge]\ndependencies:\n  - python=3.11\n  - pip\n  - {}\n"
    pinned = [
        *(
            "a==1",
            "a[b]==1.2 ; python_version > '3'",
            "a===1",
            "a==1 \\\n    --hash=sha256:00 # via b",
            "./a",
        ),
        *("a @ https://b/c.whl", "git+https://b/c@d", "--index-url https://b", "# a", "", "-r none.txt"),
    ]
    left_open = ("a", "a==1.*", "a[b]", "a<2 # c", "-r open.txt", "--requirement=open.txt")
    (tmp_path / "open.txt").write_text("-r requirements.txt\nb\n")
    for words in (*pinned, *left_open):
        for name, text in (
            ("requirements.txt", f"first==1\n{words}\n"),
            ("environment.yml", conda.format(words)),
        ):
            if name == "environment.yml" and not words[:1].isalpha():
                continue
            (tmp_path / name).write_text(text)
            (tmp_path / ".git").mkdir(exist_ok=True)
            assert (lock_fault(tmp_path / name) == "") is (words in pinned), (name, words)
            assert (find_lock(tmp_path) == tmp_path / name) is (words in pinned), (name, words)
            (tmp_path / name).unlink()
    for text in ("", "# nothing yet\n\n", "--index-url https://b\n", "-r requirements.txt\n"):
        (tmp_path / "requirements.txt").write_text(text)
        assert (lock_fault(tmp_path / "requirements.txt"), find_lock(tmp_path)) == ("names no package", None)
    (tmp_path / "uv.lock").write_text("")
    assert (lock_fault(tmp_path / "uv.lock"), find_lock(tmp_path)) == ("is empty", None)
    (tmp_path / "uv.lock").write_text("a")
    assert find_lock(tmp_path) == tmp_path / "uv.lock"


def test_a_package_that_was_imported_has_the_version_that_the_lock_pins(tmp_path: Path) -> None:
    folder, files = tmp_path / "site-packages", {"a_b": "a_b", "google_x": "google/x", "google_y": "google/y"}
    for name, module in {**files, "yaml": "YAML_IS/z"}.items():
        info = folder / f"{name}-1.0+cpu.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0+cpu\n")
        (info / "RECORD").write_text(
            f"{module}/__init__.py,sha256=x,1\n{name}-1.0+cpu.dist-info/METADATA,,\n"
        )
    for name, metadata in (
        ("broken", b"\xff"),
        ("no_version", b"Name: a-b\n"),
        ("odd", b"Name: a-b\nVersion: x y\n"),
    ):
        (folder / f"{name}-1.dist-info").mkdir()
        (folder / f"{name}-1.dist-info" / "METADATA").write_bytes(metadata)
        (folder / f"{name}-1.dist-info" / "RECORD").write_text("a_b/__init__.py,,\n")
    imported = imported_versions({str(folder): {"a_b", "google/x", "json"}, str(tmp_path / "none"): {"yaml"}})
    assert imported == {"a-b": "1.0+cpu", "google-x": "1.0+cpu"}
    toml = '[[{}]]\nname = "me"\nsource = {{ editable = "." }}\n[[{}]]\nname = "A_b"\nversion = "{}"\n'
    conda = "dependencies:\n  - a-b={}\n"
    pipfile = '{{"default": {{"me": {{"path": "."}}}}, "develop": {{"a.b": {{"version": "=={}"}}}}}}'
    shapes = {
        "Pipfile.lock": pipfile,
        **{name: toml.replace("{}", "package", 2) for name in ("uv.lock", "poetry.lock", "pdm.lock")},
        "pylock.toml": toml.replace("{}", "packages", 2),
        "requirements.txt": "b @ file:///b\nA_b=={} ; python_version > '3' \\\n  --hash=sha256:0\nc==7\n",
        "conda-lock.yml": conda,
        "environment.yml": conda,
    }
    for name, text in shapes.items():
        for version in ("1.0", "1.0+cpu", "1.1", "1.0+cuda"):
            (tmp_path / name).write_text(text.format(version))
            differs = version in ("1.1", "1.0+cuda") and text is not conda
            expected = [f"a-b 1.0+cpu, not {version}"] * differs
            assert other_versions(tmp_path / name, imported) == expected, (name, version)
    (tmp_path / "requirements.txt").write_text("a-b==2 ; os_name == 'nt'\na-b==1.0 ; os_name != 'nt'\n")
    (tmp_path / "uv.lock").write_text("not TOML")
    assert [other_versions(tmp_path / name, imported) for name in ("requirements.txt", "uv.lock")] == [[], []]
