"""The release of an image, and one that is in ECR already: checked again, taken, or built again."""

import itertools
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.cases import each_case
from tests.integration.test_build_image import ROOT, answers

from trainyard.errors import CheckFailedError, ConfigError, VerificationError
from trainyard.gateways.images import context_files
from trainyard.gateways.images.codebuild import BuildState
from trainyard.gateways.images.ecr import Scan
from trainyard.gateways.images.local_builder import ImageFacts
from trainyard.image.building.aws_build import AwsBuilder
from trainyard.image.building.build_poll import BuildPoll
from trainyard.image.building.build_request import COMMIT_LABEL, BuildRequest, image_name, parse_build_args
from trainyard.image.building.planning import plan_build
from trainyard.image.context.build_context import checked_tag
from trainyard.image.context.image_names import parse_reference, repository_from, require_repository
from trainyard.image.release.check_levels import (
    IN_CONTAINER,
    MARK,
    Answer,
    check_lines,
    judge_declared,
    probe_answers,
    processor_of,
)
from trainyard.image.release.release_order import SEVERITIES, judge_scan
from trainyard.image.release.tag_strategy import Tag, find_image_source, plan_tags, tags_for

COMMIT, CONTENT = "a1" * 20, "content-x"
ONE, OTHER = "sha256:" + "1" * 64, "sha256:" + "2" * 64


def names(
    strategy: str, *, commit: str = COMMIT, dirty: bool = False, versions: tuple[str, ...] = ()
) -> list[str]:
    tags = tags_for(strategy, commit=commit, dirty=dirty, versions=versions, content=CONTENT)
    return [tag.name for tag in tags]


SHA = f"git-{COMMIT[:12]}-x"


def test_a_strategy_gives_its_tags() -> None:
    for strategy, versions, expected in (
        ("auto", (), [SHA, CONTENT]),
        ("auto", ("v1.2.3",), ["1.2.3", CONTENT]),
        ("auto", ("release",), [SHA, CONTENT]),
        ("semantic", ("v1.2.3", "v1.10.0", "1.9.9"), ["1.10.0", CONTENT]),
        ("semantic", ("v2.0.0-rc.1",), ["2.0.0-rc.1", CONTENT]),
        ("git-sha", ("v1.2.3",), [SHA, CONTENT]),
        ("latest", (), ["latest", SHA, CONTENT]),
    ):
        assert names(strategy, versions=versions) == expected


def test_no_commit_names_what_was_changed_since() -> None:
    for strategy in ("auto", "latest"):
        assert SHA not in names(strategy, dirty=True)
        assert not [name for name in names(strategy, commit="") if name.startswith("git-")]
    for strategy in ("semantic", "git-sha"):
        with pytest.raises(ConfigError, match=f"--tags {strategy}"):
            names(strategy, dirty=True, versions=("v1.2.3",))
        with pytest.raises(ConfigError, match=f"--tags {strategy}"):
            names(strategy, commit="")


def test_what_is_no_version_is_none() -> None:
    for version in ("1.2", "01.2.3", "v1.2.3.4", "vv1.2.3", "1.2.3-", "1.2.3+x", "latest"):
        with pytest.raises(ConfigError, match="git tag v1"):
            names("semantic", versions=(version,))


LATER = "b2" * 20
CLEAN, CHANGED = {"commit": LATER, "dirty": False}, {"commit": LATER, "dirty": True}


@each_case(
    ("given", "expected"),
    [
        ({"content": "c", "labelled": LATER}, (LATER, False, ("v1.3.0",))),
        ({"content": "c", "labelled": COMMIT}, (COMMIT, False, ())),
        ({"content": "c", "labelled": COMMIT, "version": "9.0.0"}, (COMMIT, False, ("9.0.0",))),
        ({"content": "c"}, ("", True, ())),
        ({"content": "c", "commit": COMMIT, "git": {}}, (COMMIT, False, ())),
        ({"content": "c", "commit": LATER}, (LATER, False, ("v1.3.0",))),
        ({}, ("", True, ())),
        ({"labelled": COMMIT}, ("", True, ())),
        ({"git": CHANGED}, ("", True, ())),
        ({"version": "9.0.0"}, ("", False, ("9.0.0",))),
        ({"commit": LATER}, (LATER, False, ("v1.3.0",))),
    ],
)
def test_an_image_is_named_by_the_commit_it_was_built_from(
    given: dict[str, Any], expected: tuple[str, bool, tuple[str, ...]]
) -> None:
    usual = dict.fromkeys(("content", "labelled", "commit", "version"), "") | {"git": CLEAN}
    assert find_image_source(**(usual | given), at_head=lambda: ["v1.3.0"]) == expected


EXACT = Tag("1.2.3", moves=False, needed=True)
LATEST, OF_CONTENT = Tag("latest", moves=True, needed=True), Tag(CONTENT, moves=False, needed=False)
OF_COMMIT = Tag(SHA, moves=False, needed=True)


@each_case("immutable", [True, False])
@each_case("tag", [EXACT, LATEST, OF_CONTENT, OF_COMMIT], ids=lambda tag: tag.name)
@each_case("held", [None, ONE, OTHER])
def test_a_tag_that_is_taken(tag: Tag, held: str | None, immutable: bool) -> None:
    """A free tag is set, an equal one kept; others move if tags may, those of a version or content never."""
    if held in (None, ONE):
        expected = "set" if held is None else "kept"
    elif immutable or tag is OF_CONTENT:
        expected = "" if tag.needed else "skipped"
    else:
        expected = "" if tag is EXACT else "moved"
    if expected:
        (step,) = plan_tags([tag], ONE, lambda _: held, fixed=lambda _: immutable)
        assert step.action == expected
        return
    with pytest.raises(VerificationError, match="Nothing was tagged") as caught:
        plan_tags([tag], ONE, lambda _: held, fixed=lambda _: immutable)
    assert tag.name in str(caught.value)


def test_a_scan_passes_what_is_below_the_threshold_and_nothing_unscanned() -> None:
    states = [("COMPLETE", False), ("ACTIVE", True), ("ACTIVE", False)]
    states += [(status, False) for status in ("FAILED", "IN_PROGRESS", "NONE", "UNSUPPORTED_IMAGE")]
    severities = (*SEVERITIES, "informational", "")
    wrong = []
    for threshold, severity, (status, completed) in itertools.product(
        (*SEVERITIES, "none"), severities, states
    ):
        counts = {severity.upper(): 2} if severity else {}
        for named in ({"CVE-1": severity.upper()}, {}):
            ok, text = judge_scan(Scan(status, counts if not named else {}, named, completed), threshold)
            is_bad = severity in SEVERITIES and threshold != "none"
            is_bad = is_bad and SEVERITIES.index(severity) <= SEVERITIES.index(threshold)
            is_done = status == "COMPLETE" or (status == "ACTIVE" and completed)
            expected = threshold == "none" or (is_done and not is_bad)
            if ok is not expected or ("CVE-1" in text) is not bool(named and is_done and is_bad):
                wrong.append((threshold, severity, status, completed, named, ok, text))
    assert not wrong


def image(
    user: str = "1000",
    entrypoint: tuple[str, ...] = ("a",),
    command: tuple[str, ...] = (),
    size: int | None = 10,
) -> ImageFacts:
    return ImageFacts(user, entrypoint, command, {}, "amd64", "id", size)


def test_user_entry_point_and_size_are_judged_and_root_is_a_warning() -> None:
    for facts, failed in (
        (image(), set()),
        (image(user="trainer:trainer"), set()),
        (image(entrypoint=(), command=("b",)), set()),
        (image(entrypoint=()), {"entry-point"}),
        (image(size=None), {"size"}),
        (image(size=101), {"size"}),
        (image(size=100), set()),
    ):
        assert {one.check for one in judge_declared(facts, most_bytes=100) if not one.ok} == failed, facts
    for user in ("", "root", "0:0"):
        found = judge_declared(image(user=user), most_bytes=100)
        (answer,) = [one for one in found if one.check == "user"]
        assert answer.ok and answer.warns
        assert "  user                warn  " in "\n".join(check_lines("a:1", "quick", found))


def test_the_probe_has_every_check_that_it_is_asked_for_and_our_mark() -> None:
    text = (Path(__file__).resolve().parents[3] / "docker" / "probe" / "container_probe.py").read_text()
    assert f'MARK = "{MARK}"' in text
    assert all(f'    "{name}": ' in text for name in IN_CONTAINER)


def test_a_check_without_a_good_answer_has_failed_and_answers_are_found_between_other_lines() -> None:
    torn = ("not json", "[]", '{"check": "cuda"}')
    wrong = ('{"check": "cuda", "ok": "true", "says": "", "seconds": 0}',)
    other = ('{"check": "nccl", "ok": true, "says": "", "seconds": 0}',)
    for line in ("", "noise", *(f"{MARK}{one}" for one in (*torn, *wrong, *other))):
        (answer,) = probe_answers(["cuda"], f"x\n{line}\ny", "killed")
        assert not answer.ok, line
    told = json.dumps({"check": "cuda", "ok": True, "says": "yes", "seconds": 1.5})
    assert probe_answers(["cuda"], f"noise\n{MARK}{told}\nnoise", "") == [Answer("cuda", True, "yes", 1.5)]


def test_the_processor_is_that_of_the_image_and_not_of_who_checks_it() -> None:
    assert (processor_of("arm64"), processor_of("amd64")) == ("aarch64", "x86_64")


GOOD = ("ab", "a1", "team/a-b", "a.b_c-d/e", "x" * 256)
BAD = (
    *("", "a", "A", "a b", "-a", "a-", "a--b", "a__b", "a..b", "/a", "a/", "a//b", "ä", "x" * 257, "a:1"),
    "a\n",
)


def test_names_are_those_that_ecr_takes_and_a_refusal_has_one_that_fits() -> None:
    assert [require_repository(name) for name in GOOD] == [*GOOD]
    for name in BAD:
        with pytest.raises(ConfigError, match="a name is 2 to 256 of a-z") as caught:
            require_repository(name)
        if near := repository_from(name):
            assert require_repository(near) == near
            assert near in str(caught.value)


def test_a_reference_in_its_parts() -> None:
    for text, *parts in (
        ("a", "", "a", "", ""),
        ("a:", "", "a", "", ""),
        ("a:1", "", "a", "1", ""),
        ("localhost/a", "localhost", "a", "", ""),
        ("127.0.0.1:5000/a/b:t", "127.0.0.1:5000", "a/b", "t", ""),
        (f"r.io/a:t@{ONE}", "r.io", "a", "t", ONE),
    ):
        found = parse_reference(text)
        assert [found.host, found.repository, found.tag, found.digest] == parts
    for text in ("", ":1", "A", "a@sha256:1", "a:b c", "r.io/", "a:-x"):
        with pytest.raises(ConfigError, match="names no image"):
            parse_reference(text)


def test_only_a_tree_that_is_known_to_be_clean_is_labelled_with_its_commit(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM scratch\n")
    words: dict[str, Any] = {"image": "ab", "platform": "linux/amd64", "target": "", "build_args": []}
    words |= {"base_image": "", "most_bytes": 100}
    clean: dict[str, Any] = {"commit": COMMIT, "dirty": False}
    for git in (clean, clean | {"dirty": True}, {"commit": COMMIT}, {}):
        request = plan_build(tmp_path, Path("Dockerfile"), files=context_files, git=git, **words)
        assert request.labels.get(COMMIT_LABEL) == (COMMIT if git == clean else None)


def test_an_image_is_named_for_its_folder() -> None:
    assert image_name("/home/me/Llama Training", "Dockerfile") == "llama-training"
    assert image_name("/w/repo", "docker/fsdp/Dockerfile") == "fsdp"
    for folder in ("__x__", "___"):
        with pytest.raises(ConfigError, match="--image"):
            image_name(f"/w/{folder}", "Dockerfile")


def test_a_build_argument_that_cannot_be_used_is_refused_and_others_keep_their_text() -> None:
    in_history = "readable in the image's history"
    for word, says in (
        *((word, "NAME=VALUE") for word in ("A", "=1", "1A=1")),
        ("B=1", "declares no ARG B"),
        *((word, in_history) for word in ("HF_TOKEN=x", "AWS_SECRET_KEY=x", "DB_PASSWORD=x")),
    ):
        with pytest.raises(ConfigError, match=says) as caught:
            parse_build_args([word], {"A": "", "HF_TOKEN": ""})
        assert "=x" not in str(caught.value)
    assert parse_build_args(["A=b=c d"], {"A": ""}) == {"A": "b=c d"}


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
REQUESTED = REQUEST.tag
HOST = "123456789012.dkr.ecr.us-west-2.amazonaws.com"


def passed(level: str, digest: str = ONE) -> dict[str, str]:
    return {checked_tag(level, REQUESTED, digest): digest}


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
        ({REQUESTED: ONE} | passed("full"), [], "quick", ""),
        ({REQUESTED: ONE} | passed("quick"), [], "full", "check"),
        ({REQUESTED: ONE}, [], "quick", "check"),
        ({}, [], "quick", "image"),
        ({REQUESTED: ONE} | passed("full"), ["1.2.3"], "full", "image"),
        ({REQUESTED: ONE, "1.2.3": OTHER} | passed("full"), ["1.2.3"], "full", "image"),
        ({REQUESTED: ONE, "1.2.3": ONE} | passed("full"), ["1.2.3"], "full", ""),
        ({REQUESTED: ONE, "git-a": ONE} | passed("full"), ["latest", "git-a"], "full", "image"),
        ({REQUESTED: ONE, "1.2.3": OTHER} | passed("full", OTHER), ["1.2.3"], "full", ""),
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
