"""Stand-ins for docker and buildah, and a registry on loopback that is ECR too."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.scripted_aws import ScriptedAws

ROOT = Path(__file__).resolve().parents[4]
Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Make the named builders the only programs that are found; their state is below `tmp_path`."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    def put(*names: str) -> None:
        for name in names:
            program = ROOT / "tests" / "integration" / f"{name}_stand_in.py"
            (folder / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "{program}" "$@"\n')
            (folder / name).chmod(0o755)

    return put


class Server(ScriptedAws):
    """A registry, and ECR with the answers to operations in `answers`; no request is passed on."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:1")
        self.answers: dict[str, Any] = {}
        self.refuses: dict[str, int] = {}
        """Method -> the status of every answer to it."""
        self.requests: list[tuple[str, str]] = []

    def answer(self, operation: str, request: dict[str, Any]) -> tuple[int, Any] | None:
        told = super().answer(operation, request)
        return told if told is not None or operation not in self.answers else (200, self.answers[operation])

    def distribution(
        self, method: str, path: str, body: bytes, kind: str
    ) -> tuple[int, dict[str, str], bytes]:
        self.requests.append((method, path))
        if method in self.refuses:
            return self.refuses[method], {}, b"the server says no"
        return super().distribution(method, path, body, kind)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Server]:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "no-config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "no-credentials"))
    served = Server()
    with served.serving():
        for name, value in served.environment().items():
            monkeypatch.setenv(name, value)
        yield served
