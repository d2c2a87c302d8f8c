"""Building an image on this machine: the name of an image whose content exists already."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.scripts.conftest import load_script


def test_latest_names_the_content_that_was_asked_for_although_nothing_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, tagged = load_script("image_build"), []
    builder = SimpleNamespace(has=lambda _: True, tag=lambda image, name: tagged.append((image, name)))
    monkeypatch.setattr(script, "find_builder", lambda _: builder)
    args = script.parse_args(["--context", str(tmp_path), "--builder", "local"])
    request = SimpleNamespace(image="fsdp", tag="content-1", unpinned=(), record=dict)
    (result,) = script.build_here(args, [request])
    assert not result["built"]
    assert tagged == [("fsdp:content-1", "fsdp:latest")]


def test_options_may_be_spelled_with_underscores() -> None:
    """As document 002 does."""
    words = ["--auto_fix", "--max_attempts", "7", "--image_tag=a_b"]
    args = load_script("image_build").parse_args(words)
    assert (args.auto_fix, args.max_attempts, args.image_tag) == (True, 7, ["a_b"])
