"""Pushes to ECR: several regions and one that fails, tags that do not move, scans with findings."""

import itertools
import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.integration.scripted_aws import REGION, ScriptedAws
from tests.scripts.conftest import Call

from trainyard.commands import image_push
from trainyard.gateways.images.registry import Registry

OTHER, THIRD = "eu-west-1", "ap-south-1"
COMMIT, CONTENT = "b" * 40, "c" * 64
CONTENT_TAG = f"content-{CONTENT[:24]}"
GIT_TAG = f"git-{COMMIT[:12]}-{CONTENT[:8]}"
BAD = {"findingSeverityCounts": {"CRITICAL": 2}, "findings": [{"name": "CVE-9", "severity": "CRITICAL"}]}


@dataclass
class Places:
    """A server for each region, and the repository in each."""

    servers: dict[str, ScriptedAws]
    repository: str
    home: Path

    def tags(self, region: str) -> dict[str, str]:
        return self.servers[region].tags(self.repository)

    def final(self, region: str) -> set[str]:
        return {tag for tag in self.tags(region) if not tag.startswith(("build-", "sha256-"))}


@pytest.fixture
def places(
    moto: Any, called: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stand_ins: None
) -> Iterator[Places]:
    name = f"team/trainer-{time.time_ns()}"
    with ExitStack() as stack:
        first = stack.enter_context(ScriptedAws(moto.url).serving())
        for region in (OTHER, THIRD):
            first.regions[region] = stack.enter_context(ScriptedAws(moto.url).serving())
        for region in (REGION, OTHER, THIRD):
            ecr = first.client("ecr", region)
            ecr.create_repository(repositoryName=name, imageTagMutability="IMMUTABLE")
        for key, value in first.environment().items():
            monkeypatch.setenv(key, value)
        found = Places({REGION: first, **first.regions}, name, tmp_path)
        for server in found.servers.values():
            server.immutable = True
        yield found


@pytest.fixture
def push(places: Places, called: Call) -> Callable[..., tuple[int, str]]:
    given = {"dev.trainyard.content": CONTENT, "org.opencontainers.image.revision": COMMIT}

    def call(*words: str) -> tuple[int, str]:
        images = {"trainer:1": given, f"trainer:{CONTENT_TAG}": given}
        (places.home / "docker-images.json").write_text(json.dumps(images))
        line = ("--image", "trainer:1", "--repository", places.repository, "--tags", "git-sha", *words)
        done = called("image push", *line)
        return done.returncode, done.stdout + done.stderr

    return call


REGIONS = ("--region", REGION, "--region", OTHER, "--region", THIRD)
FINAL = {GIT_TAG, CONTENT_TAG}


def test_every_region_gets_the_same_digest_and_tags(places: Places, push: Any) -> None:
    code, said = push(*REGIONS, "--checked", "standard", "--json")
    assert code == 0, said
    data, _ = json.JSONDecoder().raw_decode(said)
    assert len({one["digest"] for one in data["places"]}) == 1
    for region in places.servers:
        checked = {tag for tag in places.final(region) if tag.startswith("checked-standard-")}
        assert places.final(region) - checked == FINAL and len(checked) == 1
        assert {places.tags(region)[tag] for tag in places.final(region)} == {data["digest"]}


def test_the_scan_is_that_of_the_image_in_an_index_with_attestations(
    places: Places, push: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docker with the containerd image store pushes such an index, and ECR scans none."""
    image, beside = "sha256:" + "1" * 64, "sha256:" + "2" * 64
    kind = {"annotations": {"vnd.docker.reference.type": "attestation-manifest"}}
    index = {"manifests": [{"digest": image}, {"digest": beside} | kind]}
    monkeypatch.setenv("STAND_IN_INDEX", json.dumps(index))
    code, said = push("--region", REGION, "--json")
    assert code == 0, said
    data, _ = json.JSONDecoder().raw_decode(said)
    assert set(places.servers[REGION].scanned) == {image}
    assert set(places.tags(REGION).values()) == {data["digest"]}
    monkeypatch.setenv("STAND_IN_INDEX", json.dumps({"manifests": index["manifests"][1:]}))
    places.servers[REGION].registry.clear()
    code, said = push("--region", REGION)
    assert code == 1, said
    assert "holds no such image" in said and places.final(REGION) == set()


def refuse(operation: str, error: str) -> Callable[[Places, str], None]:
    def spoil(places: Places, region: str) -> None:
        places.servers[region].refusals[operation] = [(error, "no")] * 9

    return spoil


def find_something(places: Places, region: str) -> None:
    places.servers[region].scan = {"imageScanStatus": {"status": "COMPLETE"}, "imageScanFindings": BAD}


def take_the_tag(places: Places, region: str) -> None:
    key = f"/v2/{places.repository}/manifests/{GIT_TAG}"
    places.servers[region].registry[key] = b'{"schemaVersion": 2, "layers": []}'


FAILURES: dict[str, tuple[Callable[[Places, str], None], int, str]] = {
    "no repository": (
        refuse("DescribeRepositories", "RepositoryNotFoundException"),
        2,
        "aws ecr create-repository",
    ),
    "region off": (
        refuse("DescribeRepositories", "UnrecognizedClientException"),
        4,
        "name another with --region",
    ),
    "no login": (refuse("GetAuthorizationToken", "AccessDeniedException"), 4, "permissions.md"),
    "no scan": (refuse("DescribeImageScanFindings", "AccessDeniedException"), 4, "permissions.md"),
    "findings": (find_something, 1, "the scan found 2 critical: CVE-9"),
    "another digest under the tag": (take_the_tag, 1, "names sha256:"),
}


@pytest.mark.parametrize(
    ("case", "failing"), [*zip(FAILURES, itertools.cycle((REGION, THIRD)), strict=False)]
)
def test_a_region_that_fails_leaves_every_region_without_a_tag(
    places: Places, push: Any, case: str, failing: str
) -> None:
    spoil, expected, says = FAILURES[case]
    spoil(places, failing)
    code, said = push(*REGIONS)
    assert code == expected, said
    assert says in said
    assert failing in said or places.servers[failing].host in said
    for region in places.servers:
        taken = {GIT_TAG} if (case, region) == ("another digest under the tag", failing) else set()
        assert places.final(region) == taken, (region, said)


def test_a_registry_that_refuses_the_tag_itself_says_where_the_tags_are_set(
    places: Places, push: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tag = Registry.tag

    def fails_in_the_second(self: Registry, repository: str, digest: str, tags: list[str]) -> None:
        if self.host == places.servers[OTHER].host:
            key = f"/v2/{repository}/manifests/{tags[0]}"  # somebody else was quicker
            places.servers[OTHER].registry[key] = b'{"schemaVersion": 2, "layers": []}'
        tag(self, repository, digest, tags)

    monkeypatch.setattr(Registry, "tag", fails_in_the_second)
    code, said = push(*REGIONS)
    assert code == 4, said
    assert f"All tags are set in {places.servers[REGION].host}/{places.repository}" in said
    assert places.final(REGION) == FINAL and places.final(THIRD) == set()


def test_a_second_push_of_the_same_image_keeps_what_is_set(places: Places, push: Any) -> None:
    """ECR takes a tag of an immutable repository only once, even for the same digest."""
    places.servers[REGION].scan = {"imageScanStatus": {"status": "FAILED"}}
    code, said = push("--region", REGION)
    assert code == 1, said
    assert "the scan of the image is failed" in said and "No tag was set" in said
    places.servers[REGION].scan = {"imageScanStatus": {"status": "COMPLETE"}}
    for _ in range(2):
        code, said = push("--region", REGION)
        assert code == 0, said
    assert "kept" in said
    assert places.final(REGION) == FINAL
    assert len([tag for tag in places.tags(REGION) if tag.startswith("build-")]) == 3


def test_every_repository_of_the_project_gets_the_same_digest(
    places: Places, push: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, second = places.servers[REGION], f"{places.repository}-second"
    server.client("ecr").create_repository(repositoryName=second)
    code, said = push("--region", REGION, "--repository", second, "--json")
    assert code == 0, said
    data, _ = json.JSONDecoder().raw_decode(said)
    assert [one["uri"].partition("@")[0] for one in data["places"]] == [
        f"{server.host}/{places.repository}",
        f"{server.host}/{second}",
    ]
    for repository in (places.repository, second):
        assert server.tags(repository)[GIT_TAG] == data["digest"]
    monkeypatch.setenv("ECR_REPOSITORY", f"{places.repository} {second}")
    args = image_push.parse_args(["--image", "trainer:1"])
    assert args.repository == [places.repository, second]


def test_latest_moves_and_no_other_tag_where_the_set_up_excludes_it(places: Places, push: Any) -> None:
    """The repository as infrastructure/cloudformation.yaml makes it."""
    server = places.servers[REGION]
    name = f"{places.repository}-moves"
    filters = [{"filterType": "WILDCARD", "filter": "latest"}]
    mutability = "IMMUTABLE_WITH_EXCLUSION"
    server.client("ecr").create_repository(
        repositoryName=name, imageTagMutability=mutability, imageTagMutabilityExclusionFilters=filters
    )
    server.immutable = False  # the scripted registry knows no filters; the push has to read them from ECR
    other = b'{"schemaVersion": 2, "layers": []}'
    for tag in ("latest", "1.2.3"):
        server.registry[f"/v2/{name}/manifests/{tag}"] = other
    words = ["--region", REGION, "--json"]
    places.repository = name
    code, said = push(*words, "--tags", "latest")
    assert code == 0, said
    data, _ = json.JSONDecoder().raw_decode(said)
    actions = {step["tag"]: step["action"] for step in data["places"][0]["tags"]}
    assert actions == {"latest": "moved", GIT_TAG: "set", CONTENT_TAG: "set"}
    assert server.tags(name)["latest"] == data["digest"]
    code, said = push(*words, "--tags", "semantic", "--version", "1.2.3")
    assert code == 1 and "The tag 1.2.3 names" in said
