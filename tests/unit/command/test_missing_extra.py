"""The extra of a missing module, and what no text may say about installing this distribution."""

import re
from pathlib import Path

from trainyard.command.handler import extra_of

ROOT = Path(__file__).resolve().parents[3]


def test_a_module_belongs_to_the_extra_that_declares_it() -> None:
    extras = {"torch": "train", "websocket": "cluster", "model_signing": "sign", "nothing.of.ours": ""}
    assert {module: extra_of(module) for module in extras} == extras


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
