"""Checking an image: what a check in AWS cannot be asked, and which copy is checked."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from trainyard.gateways.images import ecr_repository, local_builder


@pytest.fixture
def script(load_script: Callable[[str], Any]) -> Any:
    return load_script("check_image")


@pytest.mark.parametrize(
    "words",
    [
        ["--max-size", "3"],
        ["--lock", "own.txt"],
        ["--python", "python3.12"],
        ["--gpus"],
        ["--junit", "report.xml"],
        ["--output", "result.json"],
    ],
)
def test_an_option_that_a_check_in_aws_would_ignore_is_refused(
    words: list[str], script: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        script.parse_args(["--image", "a:1", *words])
    assert caught.value.code == 2
    assert words[0] in capsys.readouterr().err
    script.parse_args(["--image", "a:1", "--builder", "local", *words])


@pytest.mark.parametrize(
    ("image", "here", "pulls"),
    [
        ("r.io/a:1", True, True),
        ("127.0.0.1:5000/a", True, True),
        ("r.io/a@sha256:" + "1" * 64, True, False),
        ("r.io/a@sha256:" + "1" * 64, False, True),
        ("a1:1", True, False),
        ("a1:1", False, True),
        ("localhost/a1:1", True, False),
    ],
)
def test_a_tag_in_a_registry_is_pulled_although_an_older_copy_is_here(
    image: str, here: bool, pulls: bool, script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts, pulled = SimpleNamespace(user="1", entrypoint=("a",), command=(), size=1), []
    builder = SimpleNamespace(
        has=lambda _: here, inspect=lambda _: facts, pull=lambda name, _: pulled.append(name)
    )
    monkeypatch.setattr(local_builder, "find_builder", lambda _: builder)
    monkeypatch.setattr(ecr_repository, "login_to", lambda _: None)
    monkeypatch.setattr(script, "probe", lambda *_: [])
    script.check_here(script.parse_args(["--image", image, "--builder", "local", "--level", "quick"]))
    assert pulled == [image] * pulls
