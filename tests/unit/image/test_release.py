"""The release of an image: check levels, tags and the tags that are taken, scans, names."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from tests.cases import each_case

from trainyard.errors import ConfigError, VerificationError
from trainyard.gateways.images import context_files
from trainyard.gateways.images.ecr import Scan
from trainyard.gateways.images.local_builder import ImageFacts
from trainyard.image.building.build_request import COMMIT_LABEL, image_name, parse_build_args
from trainyard.image.building.planning import BuildOptions, plan_build
from trainyard.image.context.image_names import (
    parse_reference,
    repository_from,
    require_region,
    require_repository,
)
from trainyard.image.release.check_levels import (
    IN_CONTAINER,
    LEVELS,
    MARK,
    Answer,
    check_lines,
    judge_declared,
    linux_markers,
    probe_answers,
)
from trainyard.image.release.release_order import SEVERITIES, judge_scan
from trainyard.image.release.tag_strategy import (
    Tag,
    find_image_source,
    plan_tags,
    tags_for,
)

COMMIT, CONTENT = "a1" * 20, "content-x"
ONE, OTHER = "sha256:" + "1" * 64, "sha256:" + "2" * 64


def names(
    strategy: str, *, commit: str = COMMIT, dirty: bool = False, versions: tuple[str, ...] = ()
) -> list[str]:
    tags = tags_for(strategy, commit=commit, dirty=dirty, versions=versions, content=CONTENT)
    return [tag.name for tag in tags]


SHA = f"git-{COMMIT[:12]}-x"


@pytest.mark.parametrize(
    ("strategy", "versions", "expected"),
    [
        ("auto", (), [SHA, CONTENT]),
        ("auto", ("v1.2.3",), ["1.2.3", CONTENT]),
        ("auto", ("release",), [SHA, CONTENT]),
        ("semantic", ("v1.2.3", "v1.10.0", "1.9.9"), ["1.10.0", CONTENT]),
        ("semantic", ("v2.0.0-rc.1",), ["2.0.0-rc.1", CONTENT]),
        ("git-sha", ("v1.2.3",), [SHA, CONTENT]),
        ("latest", (), ["latest", SHA, CONTENT]),
    ],
)
def test_a_strategy_gives_its_tags(strategy: str, versions: tuple[str, ...], expected: list[str]) -> None:
    assert names(strategy, versions=versions) == expected


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"content": "content-" + "1" * 24}, {"content": "content-" + "2" * 24}),
        ({"image_id": "1" * 64}, {"image_id": "2" * 64}),
    ],
)
def test_two_images_of_one_commit_have_different_tags(one: dict[str, str], other: dict[str, str]) -> None:
    usual: dict[str, Any] = {"commit": COMMIT, "dirty": False, "versions": (), "content": ""}
    found = [{tag.name for tag in tags_for("auto", **(usual | each))} for each in (one, other)]
    assert f"git-{COMMIT[:12]}-11111111" in found[0]
    assert not found[0] & found[1]


@pytest.mark.parametrize("strategy", ["auto", "semantic", "git-sha", "latest"])
def test_no_commit_names_what_was_changed_since(strategy: str) -> None:
    if strategy in ("auto", "latest"):
        assert SHA not in names(strategy, dirty=True)
        assert not [name for name in names(strategy, commit="") if name.startswith("git-")]
        return
    with pytest.raises(ConfigError, match=f"--tags {strategy}"):
        names(strategy, dirty=True, versions=("v1.2.3",))
    with pytest.raises(ConfigError, match=f"--tags {strategy}"):
        names(strategy, commit="")


@pytest.mark.parametrize("version", ["1.2", "01.2.3", "v1.2.3.4", "vv1.2.3", "1.2.3-", "1.2.3+x", "latest"])
def test_what_is_no_version_is_none(version: str) -> None:
    with pytest.raises(ConfigError, match="git tag v1"):
        names("semantic", versions=(version,))


LATER = "b2" * 20
CLEAN, CHANGED = {"commit": LATER, "dirty": False}, {"commit": LATER, "dirty": True}


@each_case(
    ("given", "expected"),
    [
        ({"content": "c", "labelled": LATER}, (LATER, False, ("v1.3.0",))),
        ({"content": "c", "labelled": LATER, "git": CHANGED}, (LATER, False, ("v1.3.0",))),
        ({"content": "c", "labelled": COMMIT}, (COMMIT, False, ())),
        ({"content": "c", "labelled": COMMIT, "version": "9.0.0"}, (COMMIT, False, ("9.0.0",))),
        ({"content": "c"}, ("", True, ())),
        ({"content": "c", "git": {}}, ("", True, ())),
        ({"content": "c", "commit": COMMIT, "git": {}}, (COMMIT, False, ())),
        ({"content": "c", "commit": LATER}, (LATER, False, ("v1.3.0",))),
        ({"content": "c", "labelled": LATER, "inherited": True}, ("", True, ())),
        ({"content": "c", "inherited": True, "commit": COMMIT}, (COMMIT, False, ())),
        ({}, ("", True, ())),
        ({"labelled": COMMIT}, ("", True, ())),
        ({"labelled": LATER}, ("", True, ())),
        ({"git": CHANGED}, ("", True, ())),
        ({"version": "9.0.0"}, ("", False, ("9.0.0",))),
        ({"commit": LATER}, (LATER, False, ("v1.3.0",))),
    ],
)
def test_an_image_is_named_by_the_commit_it_was_built_from(
    given: dict[str, Any], expected: tuple[str, bool, tuple[str, ...]]
) -> None:
    usual: dict[str, Any] = {
        "content": "",
        "labelled": "",
        "inherited": False,
        "commit": "",
        "version": "",
        "git": CLEAN,
    }
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
        assert [s.action for s in plan_tags([tag], ONE, lambda _: held, fixed=lambda _: immutable)] == [
            expected
        ]
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
    return ImageFacts(user, entrypoint, command, {}, {}, "amd64", "id", size)


@each_case(
    ("facts", "failed"),
    [
        (image(), set()),
        (image(user="trainer:trainer"), set()),
        (image(entrypoint=(), command=("b",)), set()),
        (image(entrypoint=()), {"entry-point"}),
        (image(size=None), {"size"}),
        (image(size=101), {"size"}),
        (image(size=100), set()),
    ],
)
def test_user_entry_point_and_size(facts: ImageFacts, failed: set[str]) -> None:
    found = judge_declared(facts, most_bytes=100)
    assert {one.check for one in found if not one.ok} == failed


@each_case("user", ["", "root", "0:0"])
def test_root_is_a_warning(user: str) -> None:
    found = judge_declared(image(user=user), most_bytes=100)
    (answer,) = [one for one in found if one.check == "user"]
    assert answer.ok and answer.warns
    assert "  user                warn  " in "\n".join(check_lines("a:1", "quick", found))


def test_each_level_holds_the_one_before() -> None:
    quick, standard, full = LEVELS["quick"], LEVELS["standard"], LEVELS["full"]
    assert set(quick) < set(standard) < set(full)
    assert set(IN_CONTAINER) <= set(full)


def test_the_probe_has_every_check_that_it_is_asked_for_and_our_mark() -> None:
    text = (Path(__file__).resolve().parents[3] / "docker" / "probe" / "container_probe.py").read_text()
    assert f'MARK = "{MARK}"' in text
    assert all(f'    "{name}": ' in text for name in IN_CONTAINER)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "noise",
        f"{MARK}not json",
        f"{MARK}[]",
        f'{MARK}{{"check": "cuda"}}',
        f'{MARK}{{"check": "cuda", "ok": "true", "says": "", "seconds": 0}}',
        f'{MARK}{{"check": "nccl", "ok": true, "says": "", "seconds": 0}}',
    ],
)
def test_a_check_without_a_good_answer_has_failed(line: str) -> None:
    (answer,) = probe_answers(["cuda"], f"x\n{line}\ny", "killed")
    assert not answer.ok


def test_answers_are_found_between_other_lines() -> None:
    told = json.dumps({"check": "cuda", "ok": True, "says": "yes", "seconds": 1.5})
    assert probe_answers(["cuda"], f"noise\n{MARK}{told}\nnoise", "") == [Answer("cuda", True, "yes", 1.5)]


def test_markers_are_those_of_the_image_and_not_of_who_checks_it() -> None:
    assert linux_markers("arm64")["platform_machine"] == "aarch64"
    assert linux_markers("amd64")["platform_machine"] == "x86_64"


GOOD = ("ab", "a1", "team/a-b", "a.b_c-d/e", "x" * 256)
BAD = (
    "",
    "a",
    "A",
    "a b",
    "-a",
    "a-",
    "a--b",
    "a__b",
    "a..b",
    "/a",
    "a/",
    "a//b",
    "ä",
    "x" * 257,
    "a:1",
    "../a",
    "a\n",
)


@pytest.mark.parametrize("name", GOOD)
def test_names_that_ecr_takes(name: str) -> None:
    assert require_repository(name) == name


@each_case("name", BAD)
def test_names_that_ecr_refuses_are_refused_with_one_that_fits(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        require_repository(name)
    if near := repository_from(name):
        assert require_repository(near) == near
        assert near in str(caught.value)


@pytest.mark.parametrize("name", ["us-west-2", "eu-central-1", "us-gov-west-1", "ap-southeast-4"])
def test_regions(name: str) -> None:
    assert require_region(name) == name
    for wrong in (name.upper(), name[:-2], f"{name}a", ""):
        with pytest.raises(ConfigError):
            require_region(wrong)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a", ("", "a", "", "")),
        ("a:1", ("", "a", "1", "")),
        ("localhost/a", ("localhost", "a", "", "")),
        ("127.0.0.1:5000/a/b:t", ("127.0.0.1:5000", "a/b", "t", "")),
        (f"r.io/a:t@{ONE}", ("r.io", "a", "t", ONE)),
    ],
)
def test_a_reference_in_its_parts(text: str, parts: tuple[str, ...]) -> None:
    found = parse_reference(text)
    assert (found.host, found.repository, found.tag, found.digest) == parts


@each_case("text", ["", ":1", "A", "a:", "a@sha256:1", "a:b c", "r.io/", "a:-x"])
def test_what_names_no_image_is_refused(text: str) -> None:
    if text == "a:":
        assert parse_reference(text).tag == ""
        return
    with pytest.raises(ConfigError, match="names no image"):
        parse_reference(text)


@pytest.mark.parametrize(
    ("git", "labelled"),
    [
        ({"commit": COMMIT, "dirty": False}, COMMIT),
        ({"commit": COMMIT, "dirty": True}, None),
        ({"commit": COMMIT}, None),
        ({}, None),
    ],
)
def test_only_a_tree_that_is_known_to_be_clean_is_labelled_with_its_commit(
    git: dict[str, Any], labelled: str | None, tmp_path: Path
) -> None:
    (tmp_path / "Dockerfile").write_text("FROM scratch\n")
    options = BuildOptions("ab", "linux/amd64", "", [], most_bytes=100)
    request = plan_build(tmp_path, Path("Dockerfile"), options, files=context_files, git=git)
    assert request.labels.get(COMMIT_LABEL) == labelled


@pytest.mark.parametrize(
    ("context", "dockerfile", "name"),
    [
        ("/home/me/Llama Training", "Dockerfile", "llama-training"),
        ("/w/repo", "docker/fsdp/Dockerfile", "fsdp"),
        ("/w/__x__", "Dockerfile", ""),
        ("/w/___", "Dockerfile", ""),
    ],
)
def test_an_image_is_named_for_its_folder(context: str, dockerfile: str, name: str) -> None:
    if name:
        assert image_name(context, dockerfile) == name
        return
    with pytest.raises(ConfigError, match="--image"):
        image_name(context, dockerfile)


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("A", "NAME=VALUE"),
        ("=1", "NAME=VALUE"),
        ("1A=1", "NAME=VALUE"),
        ("B=1", "declares no ARG B"),
        ("HF_TOKEN=x", "readable in the image's history"),
        ("AWS_SECRET_KEY=x", "readable in the image's history"),
        ("DB_PASSWORD=x", "readable in the image's history"),
    ],
)
def test_a_build_argument_that_cannot_be_used(word: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        parse_build_args([word], {"A": "", "HF_TOKEN": ""})
    assert "=x" not in str(caught.value)


def test_build_arguments_keep_their_text() -> None:
    assert parse_build_args(["A=b=c d"], {"A": ""}) == {"A": "b=c d"}


@pytest.mark.parametrize("name", ["a", "a" * 300])
def test_a_name_of_the_wrong_length_is_refused_with_the_rule(name: str) -> None:
    with pytest.raises(ConfigError, match="a name is 2 to 256 of a-z"):
        require_repository(name)
