"""An image that is in ECR already: when it is taken, checked again, or built again."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from tests.cases import each_case
from tests.integration.test_build_image import ROOT, answers

from trainyard.errors import ConfigError
from trainyard.gateways.images.codebuild import BuildState
from trainyard.image.building.aws_build import AwsBuilder, AwsOptions
from trainyard.image.building.build_poll import BuildPoll
from trainyard.image.building.build_record import build_cost, github_source, result_lines
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
    held: dict[str, str], needed: list[str], level: str, task: str
) -> None:
    started: list[str] = []

    def start(_project: str, *, source: Any, variables: dict[str, str], token: str, secrets: Any) -> str:
        assert secrets == {}
        started.append(variables["TASK"])
        assert variables["LEVEL"] == level
        assert variables["TASK"] != "check" or variables["IMAGE_URI"].endswith(f"/fsdp@{ONE}")
        return "id"

    uri = f"123456789012.dkr.ecr.us-west-2.amazonaws.com/fsdp@{ONE}"
    exported = {"IMAGE_DIGEST": ONE, "IMAGE_CHECK": answers(uri, level)}
    ended = BuildState("id", "SUCCEEDED", (), "", "", "", exported)
    aws: Any = SimpleNamespace(
        region="us-west-2",
        upload_source=lambda *_, **__: True,
        start=start,
        states=lambda ids: dict.fromkeys(ids, ended),
    )
    builder = AwsBuilder(
        aws,
        BuildPoll(aws, lambda *_: None, lambda: 0.0, lambda _: None, seconds=1.0, poll_seconds=1.0),
        tool_files=lambda _: {},
        write_archive=lambda *_: "0",
        find_digest=lambda *, tag, digest, **_: digest or held.get(tag),
        needed_tags=lambda _: needed,
        find_cache=lambda _: "",
        account="123456789012",
        options=AwsOptions("p", "", "s3", level, "auto", "", "", rebuild=False),
        root=ROOT,
        origin="",
        token="t",
    )
    (result,) = builder.build([REQUEST])
    assert isinstance(result, dict)
    assert started == [task] * bool(task)
    assert result["built"] is (task == "image")


def test_a_source_on_github_has_only_what_start_build_takes() -> None:
    request = replace(REQUEST, commit="a" * 40)
    source = github_source(request, "git@github.com:me/lab.git", ".")
    assert source["sourceLocationOverride"] == "https://github.com/me/lab.git"
    client = boto3.client("codebuild", "us-west-2", aws_access_key_id="a", aws_secret_access_key="b")
    model = client.meta.service_model.operation_model("StartBuild").input_shape
    assert model is not None and source.keys() <= model.members.keys()


@pytest.mark.parametrize(("dirty", "says"), [(True, "uncommitted changes"), (False, "is not in git")])
def test_a_source_on_github_needs_a_commit(dirty: bool, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        github_source(replace(REQUEST, commit="", dirty=dirty), "git@github.com:me/lab.git", ".")


@pytest.mark.parametrize(
    ("compute_type", "seconds", "usd"),
    [
        ("BUILD_GENERAL1_LARGE", 61.0, 0.04),
        ("BUILD_GENERAL1_LARGE", 60.0, 0.02),
        ("BUILD_GENERAL1_SMALL", 1.0, 0.005),
        ("BUILD_GENERAL1_2XLARGE", 60.0, None),
        ("", 60.0, None),
    ],
)
def test_a_build_costs_each_begun_minute_and_a_type_without_a_price_nothing_is_said_of(
    compute_type: str, seconds: float, usd: float | None
) -> None:
    assert build_cost(compute_type, seconds) == usd
    result = {"image": "a", "uri": "u", "built": True, "seconds": seconds, "usd": usd}
    assert ("$" in result_lines([result])[0]) is (usd is not None)
