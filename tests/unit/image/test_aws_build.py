"""An image that is in ECR already: when it is taken, checked again, or built again."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from tests.cases import each_case
from tests.integration.test_build_image import ROOT, answers

from trainyard.errors import CheckFailedError, ConfigError
from trainyard.gateways.images.codebuild import BuildState
from trainyard.image.building.aws_build import AwsBuilder
from trainyard.image.building.build_poll import BuildPoll
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
HOST = "123456789012.dkr.ecr.us-west-2.amazonaws.com"


def passed(level: str, digest: str = ONE) -> dict[str, str]:
    return {checked_tag(level, CONTENT, digest): digest}


def builder_of(aws: Any, **given: Any) -> AwsBuilder:
    """A builder whose registry is empty, unless `given` says otherwise."""
    known: dict[str, Any] = {
        "send_files": lambda _: ({"sourceLocationOverride": "bucket/key"}, True),
        "find_digest": lambda *, tag, digest, **_: digest or None,
        "fixed_tags": lambda _: lambda tag: False,
        "needed_tags": lambda _: [],
        "find_cache": lambda _: "",
        "host": HOST,
        "project": "p",
        "level": "quick",
        "variables": {"CHECK_FLAGS": "--cpu"},
        "secrets": {},
        "buildspec": (ROOT / "buildspec.yml").read_bytes(),
        "token": "t",
    }
    poll = BuildPoll(aws, lambda *_: None, lambda: 0.0, seconds=1.0, poll_seconds=1.0)
    return AwsBuilder(aws, poll, **known | given)


@each_case(
    ("held", "needed", "level", "task"),
    [
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
@each_case("immutable", [False, True])
def test_an_image_is_taken_only_with_every_tag_and_the_level_that_are_asked_for(
    held: dict[str, str], needed: list[str], level: str, task: str, immutable: bool
) -> None:
    """A build that would set a tag which cannot move, and exists, is refused before it starts."""
    started: list[str] = []

    def start(_project: str, *, source: Any, variables: dict[str, str], token: str, secrets: Any) -> str:
        assert secrets == {}
        started.append(variables["TASK"])
        assert (variables["LEVEL"], variables["CHECK_FLAGS"]) == (level, "--cpu")
        assert variables["TASK"] != "check" or variables["IMAGE_URI"].endswith(f"/fsdp@{ONE}")
        return "id"

    uri = f"{HOST}/fsdp@{ONE}"
    exported = {"IMAGE_DIGEST": ONE, "IMAGE_CHECK": answers(uri, level)}
    ended = BuildState("id", "SUCCEEDED", (), "", "", "", exported)
    aws: Any = SimpleNamespace(region="us-west-2", start=start, follow=lambda *_, **__: ended)
    builder = builder_of(
        aws,
        find_digest=lambda *, tag, digest, **_: digest or held.get(tag),
        fixed_tags=lambda _: lambda tag: immutable and tag != "latest",
        needed_tags=lambda _: needed,
        level=level,
    )
    if immutable and task == "image" and held.keys() & set(needed):
        with pytest.raises(ConfigError, match="names an image already"):
            builder.build([REQUEST])
        assert started == []
        return
    (result,) = builder.build([REQUEST])
    assert isinstance(result, dict)
    assert started == [task] * bool(task)
    assert result["built"] is (task == "image")


def test_an_image_that_was_built_before_one_that_fails_is_named() -> None:
    states = {
        "fsdp": BuildState("fsdp", "SUCCEEDED", (), "", "", "", {"IMAGE_DIGEST": ONE}),
        "verl": BuildState("verl", "FAILED", (), "", "", "", {}),
    }

    def start(_project: str, *, variables: dict[str, str], **_: Any) -> str:
        return variables["IMAGE"]

    aws: Any = SimpleNamespace(
        region="us-west-2", start=start, follow=lambda build, *_, **__: states[build], log_tail=lambda _: []
    )
    with pytest.raises(
        CheckFailedError, match=f"verl failed.\nBuilt before it in this call: {HOST}/fsdp@{ONE}"
    ):
        builder_of(aws).build([REQUEST, replace(REQUEST, image="verl")])
    with pytest.raises(CheckFailedError) as alone:
        builder_of(aws).build([replace(REQUEST, image="verl")])
    assert "Built before" not in str(alone.value)
