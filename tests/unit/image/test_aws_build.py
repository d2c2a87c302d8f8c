"""An image that is in ECR already: when it is taken, checked again, or built again."""

from types import SimpleNamespace
from typing import Any

import pytest
from tests.cases import each_case
from tests.integration.test_build_image import ROOT, answers

from trainyard.errors import ConfigError
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


def passed(level: str, digest: str = ONE) -> dict[str, str]:
    return {checked_tag(level, CONTENT, digest): digest}


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

    uri = f"123456789012.dkr.ecr.us-west-2.amazonaws.com/fsdp@{ONE}"
    exported = {"IMAGE_DIGEST": ONE, "IMAGE_CHECK": answers(uri, level)}
    ended = BuildState("id", "SUCCEEDED", (), "", "", "", exported)
    aws: Any = SimpleNamespace(region="us-west-2", start=start, follow=lambda *_, **__: ended)
    builder = AwsBuilder(
        aws,
        BuildPoll(aws, lambda *_: None, lambda: 0.0, seconds=1.0, poll_seconds=1.0),
        send_files=lambda _: ({"sourceLocationOverride": "bucket/key"}, True),
        find_digest=lambda *, tag, digest, **_: digest or held.get(tag),
        fixed_tags=lambda _: lambda tag: immutable and tag != "latest",
        needed_tags=lambda _: needed,
        find_cache=lambda _: "",
        host="123456789012.dkr.ecr.us-west-2.amazonaws.com",
        project="p",
        level=level,
        variables={"CHECK_FLAGS": "--cpu"},
        secrets={},
        buildspec=(ROOT / "buildspec.yml").read_bytes(),
        token="t",
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
