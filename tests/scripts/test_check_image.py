"""Checking an image: what a check in AWS cannot be asked, and which copy is checked."""

from collections.abc import Callable
from typing import Any

import pytest


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
