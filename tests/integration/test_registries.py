"""Pushes to ECR in several regions, and what a registry holds when a run is proven."""

import contextlib
import hashlib
import itertools
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest
from tests.integration.scripted_aws import ACCOUNT, REGION, ScriptedAws
from tests.scripts.conftest import Call

from trainyard.commands import image_push
from trainyard.gateways.images.held_image import MANIFEST_TYPES, find_held_image
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


FIND = "DescribeRepositories"
FAILURES: dict[str, tuple[Callable[[Places, str], None], int, str]] = {
    "no repository": (refuse(FIND, "RepositoryNotFoundException"), 2, "aws ecr create-repository"),
    "region off": (refuse(FIND, "UnrecognizedClientException"), 4, "name another with --region"),
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


@pytest.fixture
def registry() -> Iterator[ScriptedAws]:
    with ScriptedAws("http://127.0.0.1:1").serving() as server:
        yield server


MANIFEST = json.dumps({"schemaVersion": 2, "mediaType": MANIFEST_TYPES[0], "layers": []})


def held(registry: ScriptedAws) -> str:
    registry.distribution("PUT", "/v2/team/image/manifests/1", MANIFEST.encode(), MANIFEST_TYPES[0])
    return f"sha256:{hashlib.sha256(MANIFEST.encode()).hexdigest()}"


def test_an_image_that_is_held_is_evidence_and_one_that_is_gone_is_a_reason(registry: ScriptedAws) -> None:
    digest = held(registry)
    name = f"{registry.host}/team/image"
    assert find_held_image(name, digest) == (None, f"{registry.host} holds the image under that digest")
    assert find_held_image(f"{name}:tag", digest)[0] is None
    problem, _ = find_held_image(name, "sha256:" + "0" * 64)
    assert problem is not None
    assert "it was deleted, or never pushed" in problem


def test_bytes_that_have_another_digest_are_not_the_image(registry: ScriptedAws) -> None:
    digest = held(registry)
    registry.registry[f"/v2/team/image/manifests/{digest}"] = b"{}"
    problem, _ = find_held_image(f"{registry.host}/team/image", digest)
    assert problem is not None
    assert "has the digest" in problem


@pytest.mark.parametrize("name", ["team/im\nage", "/image", "x" * 100_000, "../image", "team/../../image"])
def test_what_is_no_name_of_an_image_is_asked_of_nobody(registry: ScriptedAws, name: str) -> None:
    for digest in ("sha256:" + "0" * 64, "latest", "0" * 64, ""):
        problem, said = find_held_image(f"{registry.host}/{name}", digest)
        assert problem is None or digest.endswith("0" * 64)
        assert problem or "queried" in said


def test_a_digest_without_its_algorithm_is_still_one(registry: ScriptedAws) -> None:
    """If it were taken as a tag, the registry could hold any image under it."""
    digest = held(registry)
    bare = digest.removeprefix("sha256:")
    registry.registry[f"/v2/team/image/manifests/{bare}"] = b"{}"
    assert "holds the image" in find_held_image(f"{registry.host}/team/image", bare)[1]
    registry.registry[f"/v2/team/image/manifests/{'0' * 64}"] = b"{}"
    assert find_held_image(f"{registry.host}/team/image", "0" * 64)[0] is not None


@pytest.mark.parametrize("first", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n"])
def test_a_registry_that_never_ends_its_answer_is_not_waited_for(first: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, contextlib.ExitStack() as open_ones:

        def drip() -> None:
            with contextlib.suppress(OSError):
                while True:
                    there, _ = server.accept()
                    open_ones.enter_context(there)
                    there.sendall(first)
                    for _ in range(30):
                        there.sendall(first[:1])
                        time.sleep(0.2)

        threading.Thread(target=drip, daemon=True).start()
        began = time.monotonic()
        name = f"127.0.0.1:{server.getsockname()[1]}/team/image"
        problem, said = find_held_image(name, "sha256:" + "0" * 64, seconds=0.5)
        assert time.monotonic() - began < 120
        assert problem is None
        assert "no answer within" in said


@pytest.mark.parametrize("name", ["", "trainer", "127.0.0.1:1/team/image"])
def test_a_registry_that_cannot_be_asked_is_said_and_nothing_more(name: str) -> None:
    problem, said = find_held_image(name, "sha256:" + "0" * 64)
    assert problem is None
    assert "queried" in said


def test_ecr_is_asked_without_a_pull(moto: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    with ScriptedAws(moto.url).serving() as aws:
        for name, value in aws.environment().items():
            monkeypatch.setenv(name, value)
        ecr, repository = boto3.client("ecr"), f"team/image-{time.time_ns()}"
        name = f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/{repository}"
        gone = "sha256:" + "0" * 64
        assert "it was deleted, or never pushed" in str(find_held_image(name, gone)[0])  # no such repository
        ecr.create_repository(repositoryName=repository)
        made = ecr.put_image(repositoryName=repository, imageManifest=MANIFEST, imageTag="1")
        digest = str(made["image"]["imageId"]["imageDigest"])
        assert "holds the image under that digest" in find_held_image(name, digest)[1]
        assert "it was deleted, or never pushed" in str(find_held_image(name, gone)[0])
        for code in ("AccessDeniedException", "ThrottlingException", "ServerException"):
            aws.refusals = {"DescribeImages": [(code, "because")] * 9}
            problem, observation = find_held_image(name, digest)
            assert problem is None and code in observation
        aws.refusals = {}
        assert {call for call in aws.calls if "Image" in call} == {"DescribeImages", "PutImage"}
