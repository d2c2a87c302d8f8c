"""The files and the secrets of a build: what is left out, what is refused, and what changes its digest."""

import hashlib
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tests.cases import each_case
from tests.git_repository import git

from trainyard.errors import ConfigError
from trainyard.gateways.images import context_files
from trainyard.gateways.process import run_program
from trainyard.image.building.build_secrets import (
    BuildSecret,
    build_variables_of_secrets,
    parse_secret,
    require_readable,
)
from trainyard.image.context.build_context import content_digest, require_usable
from trainyard.image.context.context_secrets import secret_by_content, secret_by_name, secret_in
from trainyard.image.context.ignore_rules import is_ignored, parse_ignore_file


def listed(name: str, size: int = 1) -> context_files.FileOnDisk:
    return context_files.FileOnDisk(name, size, "file")


def hashed(name: str, digit: str) -> context_files.HashedFile:
    return context_files.HashedFile(name, "file", digit * 64, None)


@each_case(
    ("rules", "left"),
    [
        ("", "a.py docs/a.md docs/deep/b.md tests/x.py"),
        ("# a.py\n\n", "a.py docs/a.md docs/deep/b.md tests/x.py"),
        ("docs", "a.py tests/x.py"),
        ("/docs/", "a.py tests/x.py"),
        ("./docs", "a.py tests/x.py"),
        ("docs/*", "a.py tests/x.py"),
        ("docs/*.md", "a.py docs/deep/b.md tests/x.py"),
        ("*.md", "a.py docs/a.md docs/deep/b.md tests/x.py"),
        ("**/*.md", "a.py tests/x.py"),
        ("docs/**/b.md", "a.py docs/a.md tests/x.py"),
        ("*\n!a.py", "a.py"),
        ("docs\n!docs/a.md", "a.py docs/a.md tests/x.py"),
        ("!docs\ndocs", "a.py tests/x.py"),
        ("**\n!docs/deep", "docs/deep/b.md"),
        ("?.py", "docs/a.md docs/deep/b.md tests/x.py"),
        ("[a-b].py", "docs/a.md docs/deep/b.md tests/x.py"),
        ("[^a].py", "a.py docs/a.md docs/deep/b.md tests/x.py"),
        ("docs/../tests", "a.py docs/a.md docs/deep/b.md"),
        (".", "a.py docs/a.md docs/deep/b.md tests/x.py"),
    ],
)
def test_ignore_rules_are_those_of_docker(rules: str, left: str) -> None:
    files = ["a.py", "docs/a.md", "docs/deep/b.md", "tests/x.py"]
    parsed = parse_ignore_file(rules, ".dockerignore")
    assert [name for name in files if not is_ignored(name, parsed)] == left.split()


def test_a_pattern_that_is_none_is_refused_with_its_line() -> None:
    for line in ("!", "a[b", "x/[y/z"):
        with pytest.raises(ConfigError, match=r"^\.dockerignore:2: "):
            parse_ignore_file(f"ok\n{line}", ".dockerignore")


HARMLESS = (
    *(".env.example", "env.py", "id_rsa.pub", "aws/credentials.py", "config.json", "cert.pem", ".envrc.md"),
)


def test_a_file_with_the_name_of_a_secret_is_refused_by_its_name() -> None:
    """Every known name, alone and in a folder; with a letter before or behind it, it is another name."""
    names = (
        *(".env", ".env.prod", ".netrc", ".git-credentials", ".pypirc", "id_rsa", "id_dsa", "id_ecdsa"),
        *("id_ed25519", "kubeconfig", "kaggle.json", ".aws/credentials", ".docker/config.json"),
        *(".kube/config", ".huggingface/token", ".cache/huggingface/token"),
        *("a.P12", "a.PFX", "a.KDBX", "a.TFSTATE"),
    )
    for name in names:
        assert secret_by_name(name) and secret_by_name(f"a\n/b/{name}") == secret_by_name(name)
        if not name.startswith("a."):
            other = [f"x{name}", f"{name}/x", f"{name}\n", *([] if name == ".env.prod" else [f"{name}x"])]
            assert [one for one in other if secret_by_name(one) and name != ".env.prod"] == []
        with pytest.raises(ConfigError, match="secret") as caught:
            require_usable([listed("a"), listed(name)], where="ctx", most_bytes=10)
        assert name in str(caught.value)
    assert [name for name in HARMLESS if secret_by_name(name)] == []


def test_a_text_of_any_usual_size_is_examined_to_its_last_byte_and_a_binary_is_not(tmp_path: Path) -> None:
    token = b"ghp" + b"_" + b"a1B" * 12
    for head, secret in ((b"", "a token of GitHub"), (b"x\n" * 2**20, "a token of GitHub"), (b"\0", None)):
        (tmp_path / "a").write_bytes(content := head + token + b"\n")
        (read,) = context_files.hash_files(tmp_path, [("a", "file")], examine=secret_by_content)
        assert (read.sha256, read.secret) == (hashlib.sha256(content).hexdigest(), secret)


# Put together at run time, so that no scanner takes this file for a leak.
CONTENTS = {
    "pem": b"-----BEGIN " + b"RSA PRIVATE KEY-----\nMII",
    "openssh": b"-----BEGIN " + b"OPENSSH PRIVATE KEY-----\nb3",
    "aws": b"key = " + b"AKIA" + b"ABCDEFGHIJKL2345",
    "github": b"token: " + b"ghp_" + b"a1" * 18,
    "hugging face": b"HF_TOKEN=" + b"hf_" + b"aB" * 17,
    "slack": b"xoxb-" + b"1234567890-1234567890-" + b"a" * 20,
}


def test_a_secret_is_known_by_its_content_and_never_repeated(tmp_path: Path) -> None:
    for kind, content in CONTENTS.items():
        (tmp_path / "notes.txt").write_bytes(content)
        read = context_files.hash_files(tmp_path, [("notes.txt", "file")], examine=secret_by_content)
        assert secret_in("notes.txt", content) and read[0].secret, kind
        assert content[-10:].decode() not in read[0].secret
    for content in (
        *(b"-----BEGIN CERTIFICATE-----", b"AKIAIOSFODNN7EXAMPLE", b"hf_short", b"ghp_", b"\0AKIA"),
    ):
        assert secret_by_content(content) is None


def test_a_large_context_is_refused_with_its_largest_files_and_so_is_an_empty_one() -> None:
    files = [listed("small", 10), listed("weights.bin", 5 * 1024**3), listed("b", 20)]
    with pytest.raises(ConfigError, match=r"5\.4 GB in 3 files.*weights\.bin \(5\.4 GB\).*--max-context"):
        require_usable(files, where="ctx", most_bytes=500_000_000)
    with pytest.raises(ConfigError, match="no file to build from"):
        require_usable([], where="ctx", most_bytes=1)


BASE = [hashed("a", "1"), hashed("b", "2")]
INPUTS = {"dockerfile": "FROM x", "platform": "linux/amd64"}


@each_case(
    ("files", "inputs"),
    [
        ([BASE[0]], INPUTS),
        ([BASE[0], replace(BASE[1], name="c")], INPUTS),
        ([BASE[0], replace(BASE[1], sha256="3" * 64)], INPUTS),
        ([BASE[0], replace(BASE[1], mode="executable")], INPUTS),
        (BASE, {**INPUTS, "dockerfile": "FROM y"}),
        (BASE, {**INPUTS, "arg A": "1"}),
        (BASE, {"dockerfile": "FROM x"}),
        ([hashed("ab", "1"), hashed("", "2")], INPUTS),
    ],
)
def test_every_change_of_content_changes_the_digest(
    files: list[context_files.HashedFile], inputs: dict[str, str]
) -> None:
    assert content_digest(files, inputs) != content_digest(BASE, INPUTS)
    assert content_digest(files[::-1], inputs) == content_digest(files, inputs), "their order is none"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "a folder"
    (folder / "sub").mkdir(parents=True)
    (folder / "Dockerfile").write_text("FROM scratch\n")
    (folder / "sub" / "run.sh").write_text("#!/bin/sh\n")
    (folder / "sub" / "run.sh").chmod(0o755)
    (folder / "link").symlink_to("Dockerfile")
    git(folder, "init", "-q")
    git(folder, "add", ".")
    (folder / "untracked.txt").write_text("not sent")
    return folder


def test_only_what_git_tracks_is_listed(repository: Path) -> None:
    assert [(f.name, f.mode) for f in context_files.list_files(repository)] == [
        ("Dockerfile", "file"),
        ("link", "link"),
        ("sub/run.sh", "executable"),
    ]
    assert [f.name for f in context_files.list_files(repository / "sub")] == ["run.sh"]


def test_an_untracked_folder_gives_nothing_and_a_broken_repository_an_error(repository: Path) -> None:
    (repository / "new").mkdir()
    (repository / "new" / "secret").write_text("x")
    assert context_files.list_files(repository / "new") == []
    (repository / ".git" / "HEAD").write_text("broken")
    with pytest.raises(ConfigError, match="nothing is sent"):
        context_files.list_files(repository)


def test_a_folder_outside_git_is_listed_without_its_environments(tmp_path: Path) -> None:
    for name in ("a.py", ".venv/x", "node_modules/y", "__pycache__/z", "b/c.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    assert sorted(f.name for f in context_files.list_files(tmp_path)) == ["a.py", "b/c.py"]


def test_an_archive_has_the_same_bytes_at_all_times_and_places(repository: Path, tmp_path: Path) -> None:
    sources = {file.name: repository / file.name for file in context_files.list_files(repository)}
    first = context_files.write_archive(sources, tmp_path / "one.zip")
    time.sleep(0.01)
    for path in sources.values():
        path.touch()
    context_files.copy_files(sources, tmp_path / "copy")
    again = {name: tmp_path / "copy" / name for name in sources}
    assert context_files.write_archive(again, tmp_path / "two.zip") == first


@pytest.mark.skipif(shutil.which("unzip") is None, reason="unzip is not here")
def test_an_unpacked_archive_is_the_context_it_was_made_of(repository: Path, tmp_path: Path) -> None:
    """CodeBuild installs an environment beside the files, and has no git: the listing names the files."""
    sources = {file.name: repository / file.name for file in context_files.list_files(repository)}
    context_files.write_archive(sources, tmp_path / "one.zip")
    assert run_program(["unzip", "-q", "one.zip", "-d", "src"], seconds=20, cwd=tmp_path).ok
    (tmp_path / "src" / ".uv").mkdir()
    (tmp_path / "src" / ".uv" / "huge").write_text("not of the context")
    assert context_files.list_files(tmp_path / "src") == context_files.list_files(repository)
    assert [f.name for f in context_files.list_files(tmp_path / "src" / "sub")] == ["run.sh"]
    assert (tmp_path / "src" / context_files.LISTING).is_file()


def test_the_scripts_go_with_every_source() -> None:
    root = Path(__file__).resolve().parents[3]
    names = set(context_files.tool_files(root, root / "src/trainyard"))
    assert {"buildspec.yml", "Makefile", "scripts/build_image.py", "requirements-training.txt"} <= names
    assert not [name for name in names if name.startswith(("tests/", "docs/"))]


def test_an_installed_package_sends_its_own_library(tmp_path: Path) -> None:
    data, package = tmp_path / "share/trainyard", tmp_path / "site-packages/trainyard"
    for file in (data / "buildspec.yml", data / "skills/x/SKILL.md", package / "commands/__init__.py"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x")
    assert context_files.tool_files(data, package) == {
        "buildspec.yml": data / "buildspec.yml",
        "src/trainyard/commands/__init__.py": package / "commands/__init__.py",
    }


KEY = "q7Zr4tK9vXw2Lm8Pn3Bd"
PASSWORD = "s3curePassw0rt"

SECRETS = {
    ".npmrc": f"//registry.npmjs.org/:_authToken={KEY}",
    "config/prod.env": f"DB_PASSWORD={PASSWORD}",
    "docker/config.json": '{"auths": {"ghcr.io": {"auth": "dXNlcjpxN1pyNHRLOXZYdw=="}}}',
    "kube/config": f"users:\n- user:\n    token: {KEY}\n",
    "deploy/cluster.yaml": f"users:\n- user:\n    client-key-data: {KEY * 3}\n",
    "terraform.tfstate": "{}",
    "pip.conf": f"[global]\nindex-url = https://team:{PASSWORD}@pypi.corp.net/simple",
    "requirements.txt": f"--index-url https://team:{PASSWORD}@pypi.corp.net/simple\ntorch",
    "kaggle.json": f'{{"username": "a", "key": "{KEY}"}}',
    "app/settings.yaml": f"url: postgresql+psycopg://app:{PASSWORD}@db.corp.net/app",
    "comet.ini": f"[comet]\napi_key = {KEY}",
}
INNOCENT = {
    ".npmrc": "registry=https://registry.npmjs.org/\n//x/:_authToken=${NPM_TOKEN}",
    "config/prod.env": "LOG_LEVEL=info\nHF_TOKEN=${HF_TOKEN}\nDB_PASSWORD=your_password\n",
    "docker/config.json": '{"hidden_size": 8}',
    "kube/config": "users: []\n",
    "model/config.json": '{"auth": true}',
    "pip.conf": "[global]\nindex-url = https://pypi.org/simple",
    "requirements.txt": "--index-url https://${USER}:${PASSWORD}@pypi.corp.net/simple\ntorch",
    "alembic.ini": "sqlalchemy.url = postgresql://user:password@db/app",
    "local.yaml": "url: postgresql://postgres:postgres@localhost/app",
    "docs/setup.md": f"postgresql://app:{PASSWORD}@db.corp.net/app",
    "comet.ini": "[comet]\nworkspace = team",
    "prod.env.example": f"DB_PASSWORD={PASSWORD}",
}


def test_a_secret_in_settings_is_found_and_settings_without_one_are_sent() -> None:
    assert [name for name, text in SECRETS.items() if not secret_in(name, text.encode())] == []
    assert [name for name, text in INNOCENT.items() if secret_in(name, text.encode())] == []


ARN = "arn:aws:secretsmanager:us-west-2:123456789012:secret:trainyard/pip-AbCdEf"
PLACES = {"src": "/run/token", "env": "PIP_TOKEN", "secretsmanager": "trainyard/pip"}
VALUE = "ghp_0123456789abcdefghijABCDEFGHIJ012345"
"""A value that somebody may give by mistake instead of its place."""
WRONG = (
    *("", "pip", "id=", "id=pip,src=", VALUE, f"id=a b,src={VALUE}", f"id=pip,value={VALUE}"),
    *(f"id=pip,env={VALUE}-", f"id=pip,src=/a,env={VALUE}", f"id=pip,secretsmanager={VALUE} {VALUE}"),
)


def test_a_secret_has_an_id_and_one_place() -> None:
    for kind, place in PLACES.items():
        for form in ("id=pip,{}={}", "type=file,id=pip,{}={}", "{}={},id=pip"):
            assert parse_secret(form.format(kind, place)) == BuildSecret("pip", kind, place)
    assert parse_secret("id=pip,source=/a") == BuildSecret("pip", "src", "/a")
    assert parse_secret("id=PIP_TOKEN") == BuildSecret("PIP_TOKEN", "env", "PIP_TOKEN")
    assert parse_secret(f"id=pip,secretsmanager={ARN}").place == ARN


@each_case("text", WRONG)
def test_another_form_is_refused_without_the_text_that_may_be_a_secret(text: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        parse_secret(text)
    assert VALUE not in str(refusal.value)
    assert "id=ID,src=FILE" in str(refusal.value)


def test_the_build_in_aws_gets_names_that_its_role_can_read_and_never_values() -> None:
    def variables(kind: str, place: str, project: str = "trainyard") -> tuple[dict[str, str], dict[str, str]]:
        return build_variables_of_secrets([BuildSecret("pip", kind, place)], project=project)

    for place in (PLACES["secretsmanager"], ARN, "trainyard/pip:token"):
        plain, named = variables("secretsmanager", place)
        assert plain == {"BUILD_SECRETS": "id=pip,env=BUILD_SECRET_1"}
        assert named == {parse_secret(plain["BUILD_SECRETS"]).place: place}
        with pytest.raises(ConfigError, match="names begin with lab/"):
            variables("secretsmanager", place, "lab")
    for kind in ("src", "env"):
        with pytest.raises(ConfigError, match="a name that begins with trainyard/"):
            variables(kind, PLACES[kind])


def test_a_builder_on_this_machine_reads_files_and_variables_that_are_set() -> None:
    require_readable([BuildSecret("pip", "src", "/a"), BuildSecret("hf", "env", "HF")], {"HF": ""})
    for secret, said in (
        (BuildSecret("pip", "secretsmanager", "trainyard/pip"), "only a build in AWS"),
        (BuildSecret("pip", "env", "HF"), "the variable HF is not set"),
    ):
        with pytest.raises(ConfigError, match=said):
            require_readable([secret], {})
