"""An image that is in ECR already: when it is taken, checked again, or built anew."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainyard.image.building import aws_build
from trainyard.image.building.aws_build import AwsBuilder, AwsOptions
from trainyard.image.building.build_progress import BuildProgress
from trainyard.image.building.build_request import BuildRequest
from trainyard.image.context.build_context import checked_tag

ONE, OTHER = "sha256:" + "1" * 64, "sha256:" + "2" * 64
REQUEST = BuildRequest(
    image="fsdp",
    context=".",
    dockerfile="D",
    platform="linux/amd64",
    target="",
    build_args={},
    takes_commit=False,
    commit="",
    dirty=False,
    digest="0" * 64,
    names=("D",),
    ignore_files=(),
    total_bytes=13,
    bases=("scratch",),
    locks={},
    unpinned=(),
)
CONTENT = REQUEST.tag


def passed(level: str, digest: str = ONE) -> dict[str, str]:
    return {checked_tag(level, CONTENT, digest): digest}


@pytest.mark.parametrize(
    ("held", "needed", "level", "task"),
    [
        ({CONTENT: ONE} | passed("standard"), [], "standard", ""),
        ({CONTENT: ONE} | passed("full"), [], "quick", ""),
        ({CONTENT: ONE} | passed("quick"), [], "full", "check"),
        ({CONTENT: ONE}, [], "quick", "check"),
        ({}, [], "quick", "image"),
        ({CONTENT: ONE} | passed("full"), ["1.2.3"], "full", "image"),
        ({CONTENT: ONE, "1.2.3": OTHER} | passed("full"), ["1.2.3"], "full", "image"),
        ({CONTENT: ONE, "1.2.3": ONE} | passed("full"), ["1.2.3"], "full", ""),
        ({CONTENT: ONE, "git-a": ONE} | passed("full"), ["latest", "git-a"], "full", "image"),
        ({CONTENT: ONE, "1.2.3": OTHER} | passed("full", OTHER), ["1.2.3"], "full", ""),
    ],
)
def test_an_image_is_taken_only_with_every_tag_and_the_level_that_are_asked_for(
    held: dict[str, str], needed: list[str], level: str, task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []

    def start(_project: str, *, source: Any, variables: dict[str, str], token: str) -> str:
        started.append(variables["TASK"])
        assert variables["LEVEL"] == level
        assert variables["TASK"] != "check" or variables["IMAGE_URI"].endswith(f"/fsdp@{ONE}")
        return "id"

    ended = SimpleNamespace(
        exported={"IMAGE_DIGEST": ONE}, build_id="", attempts=1, phases=(), log_address=""
    )
    monkeypatch.setattr(
        aws_build, "Follower", lambda *_, **__: SimpleNamespace(run=lambda begin: (begin(1), ended)[1])
    )
    archive = SimpleNamespace(tool_files=lambda _: {}, write_archive=lambda *_: "0")
    aws: Any = SimpleNamespace(region="us-west-2", upload_source=lambda *_, **__: True, start=start)
    builder = AwsBuilder(
        aws,
        archive,
        lambda *, tag, digest, **_: digest or held.get(tag),
        lambda _: needed,
        account="123456789012",
        options=AwsOptions("p", "", "s3", level, "auto", "", "", False, 1.0, 1.0),
        root=Path(),
        clock=lambda: 0.0,
        pause=lambda _: True,
    )
    result = builder.build(REQUEST, BuildProgress("fsdp"), say=lambda _: None, token="t", origin="")
    assert started == [task] * bool(task)
    assert result["built"] is (task == "image")
