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


def test_the_version_of_a_package_is_known_by_the_modules_that_it_alone_has(tmp_path: Path) -> None:
    folder, described = tmp_path / "site-packages", "Metadata-Version: 2.1\nName: {}\nVersion: {}\n"
    records = {
        "a_b": (described.format("a_b", "1.0+cpu"), "a_b/__init__.py"),
        "google_x": (described.format("google_x", "1.0"), "google/x/__init__.py"),
        "google_y": (described.format("google_y", "1.0"), "google/y/__init__.py"),
        "shares": (described.format("shares", "1.0"), "tests/__init__.py"),
        "also_shares": (described.format("also_shares", "1.0"), "tests/__init__.py"),
        "twice": (described.format("twice", "1.0"), "twice.py"),
        "Twice": (described.format("Twice", "2.0"), "twice.py"),
        "broken": ("\udcff", "a_b/__init__.py"),
        "~_b": (described.format("~_b", "0.9"), "a_b/__init__.py"),  # as pip leaves it
        "no_version": ("Name: a-b\n", "a_b/__init__.py"),
        "odd": (described.format("a-b", "x y"), "a_b/__init__.py"),
    }
    for name, (text, file) in records.items():
        info = folder / f"{name}-1.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(text, errors="surrogateescape")
        (info / "RECORD").write_text(f"{file},sha256=x,1\n{name}-1.dist-info/METADATA,,\n")
    modules = {"a_b", "google/x", "json", "tests", "twice"}
    imported = imported_versions({str(folder): modules, str(tmp_path / "none"): {"a_b"}})
    assert imported == {"a-b": "1.0+cpu", "google-x": "1.0"}


def test_a_package_has_the_version_that_the_lock_pins_unless_it_lies_in_a_folder(tmp_path: Path) -> None:
    toml = (
        '[[package]]\nname = "me"\nsource = {{ editable = "." }}\n[[package]]\nname = "A_b"\nversion = "{}"\n'
    )
    conda, imported = "dependencies:\n  - a-b={}\n", {"a-b": "1.0+cpu", "me": "2"}
    shapes = {
        "Pipfile.lock": '{{"default": {{"me": {{"path": "."}}, "a.b": {{"version": "=={}"}}}}}}',
        **dict.fromkeys(("uv.lock", "poetry.lock", "pdm.lock"), toml),
        "pylock.toml": toml.replace("package", "packages"),
        "requirements.txt": "b @ file:///b\nA_b=={} ; python_version > '3' \\\n  --hash=sha256:0\nc==7\n",
        "requirements.lock": "a-b==={},>=0.1\n",
        "conda-lock.yml": conda,
        "environment.yml": conda,
    }
    for name, text in shapes.items():
        for version in ("1.0", "1.0+cpu", "1.1", "1.0+cuda"):
            (tmp_path / name).write_text(text.format(version))
            differs = version in ("1.1", "1.0+cuda") and text is not conda
            expected = [f"a-b 1.0+cpu, not {version}"] * differs
            assert other_versions(tmp_path / name, imported) == expected, (name, version)
    in_folders = ('version = "1.1"\npath = "."', 'version = "1.1"\n[package.source]\ntype = "directory"')
    for text in (*in_folders, 'version = "1.1"\nsource = { virtual = "." }', 'version = "1.1'):
        (tmp_path / "uv.lock").write_text(f'[[package]]\nname = "a-b"\n{text}\n')
        assert other_versions(tmp_path / "uv.lock", imported) == [], text
    (tmp_path / "requirements.txt").write_text("a-b==2 ; os_name == 'nt'\na-b==1.0 ; os_name != 'nt'\n")
    assert other_versions(tmp_path / "requirements.txt", imported) == []
    assert other_versions(tmp_path / "none.txt", imported) == [], "it may be removed while the program runs"
