"""The advice about a missing extra: each way of installing this distribution, and what no text may say."""

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from trainyard.command.missing_extra import extra_of, install_command

ROOT = Path(__file__).resolve().parents[3]
GIT: dict[str, Any] = {"url": "https://example.com/o/r", "vcs_info": {"vcs": "git", "commit_id": "a" * 40}}
ORIGINS: dict[str, tuple[dict[str, Any] | None, str]] = {
    "index": (None, "trainyard-ci[train]==1.2"),
    "git": (GIT, f"trainyard-ci[train] @ git+https://example.com/o/r@{'a' * 40}"),
    "git, a branch": (
        {**GIT, "vcs_info": {**GIT["vcs_info"], "requested_revision": "main"}},
        f"trainyard-ci[train] @ git+https://example.com/o/r@{'a' * 40}",
    ),
    "git, a folder": (
        {**GIT, "subdirectory": "tools/t"},
        f"trainyard-ci[train] @ git+https://example.com/o/r@{'a' * 40}#subdirectory=tools/t",
    ),
    "git, with a token": (
        {**GIT, "url": "https://me:s3cret@example.com/o/r"},
        f"trainyard-ci[train] @ git+https://example.com/o/r@{'a' * 40}",
    ),
    "archive": (
        {"url": "https://example.com/t-1.2.whl", "archive_info": {"hash": "sha256=00"}},
        "trainyard-ci[train] @ https://example.com/t-1.2.whl",
    ),
    "folder": ({"url": "file:///my/a%20b", "dir_info": {}}, "trainyard-ci[train] @ file:///my/a%20b"),
    "editable": ({"url": "file:///my/a%20b", "dir_info": {"editable": True}}, "--editable /my/a b[train]"),
}
INSTALLERS = {
    "pip": [sys.executable, "-m", "pip", "install"],
    "uv": ["uv", "pip", "install", "--python", sys.executable],
    "tool": ["uv", "tool", "install"],
}


def test_the_advice_is_that_of_the_installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = []
    for (way, (origin, expected)), (installer, begins) in (
        (one, other) for one in ORIGINS.items() for other in INSTALLERS.items()
    ):
        site = tmp_path / f"{way}-{installer}".replace(" ", "")
        info = site / "trainyard_ci-1.2.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.4\nName: trainyard-ci\nVersion: 1.2\n")
        (info / "INSTALLER").write_text("uv\n" if installer == "tool" else f"{installer}\n")
        if origin is not None:
            (info / "direct_url.json").write_text(json.dumps(origin))
        if installer == "tool":
            (site / "uv-receipt.toml").write_text("")
        with monkeypatch.context() as here:
            here.setattr(sys, "path", [str(site), *sys.path])
            here.setattr(sys, "prefix", str(site))
            words = shlex.split(install_command("train"))
        if words[: len(begins)] != begins or " ".join(words[len(begins) :]) != expected:
            wrong.append(f"{way}, {installer}: {words}")
        if "--editable" not in words:
            assert Requirement(words[-1]).extras == {"train"}
    assert not wrong, "\n".join(wrong)


def test_a_checkout_is_installed_by_its_makefile() -> None:
    extras = {"torch": "train", "websocket": "cluster", "model_signing": "sign"}
    assert {module: extra_of(module) for module in extras} == extras
    assert extra_of("nothing.of.ours") == ""
    if Path(sys.prefix) == ROOT / ".venv":
        assert install_command("train") == f"make -C {shlex.quote(str(ROOT))} install"


def test_nothing_names_the_package_of_somebody_else() -> None:
    """`trainyard` on PyPI is another project: no text may install it, bare or with extras."""
    bare = re.compile(
        r"(?<!\.)\btrainyard\[|\b(?:install|add|uvx|--with) (?:-\S+ )*[\"']?trainyard(?![\w./-])"
    )
    folders = ("src", "docs", "skills", "scripts", "tools", "docker", "examples", "configs", ".github")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*")] + list(ROOT.glob("*"))
    texts = [path for path in files if path.is_file() and path.suffix not in (".pyc", ".png", ".gif")]
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for path in texts
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if bare.search(line)
    ]
    assert len(texts) > 600
    assert not found, "\n".join(found)
