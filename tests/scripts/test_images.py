"""Images on the command line: built, checked and pushed; the checked copy, and the lock that decides."""

import hashlib
import itertools
import json
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.scripts.conftest import ROOT, load_script

from trainyard.errors import ConfigError
from trainyard.gateways.images.local_builder import ImageFacts
from trainyard.image.building.build_request import COMMIT_LABEL, CONTENT_LABEL, LOCKS_LABEL
from trainyard.image.context.build_context import content_tag
from trainyard.image.release.check_levels import Answer, demanded_packages, probe_answers, probe_request
from trainyard.image.release.tag_strategy import facts_of_own_build
from trainyard.machine.package_lock import read_pins


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


push_script = load_script("image_push")

CONTENT, COMMIT = "c" * 64, "a1" * 20
OWN = f"fsdp:{content_tag(CONTENT)}"


def image(image_id: str) -> ImageFacts:
    labels = {CONTENT_LABEL: CONTENT, COMMIT_LABEL: COMMIT}
    return ImageFacts("1", (), (), labels, "amd64", image_id, 1)


@pytest.mark.parametrize(
    ("here", "own"), [({OWN: image("one")}, True), ({OWN: image("base")}, False), ({}, False)]
)
def test_a_derived_image_gets_no_tag_of_the_content_and_commit_that_it_inherits(
    here: dict[str, ImageFacts], own: bool
) -> None:
    builder: Any = SimpleNamespace(has=here.__contains__, inspect=here.__getitem__)
    facts = facts_of_own_build("fsdp:latest", builder, image("one"))
    args = push_script.parse_args(["--image", "fsdp:latest", "--repository", "fsdp", "--version", ""])
    names = [tag.name for tag in push_script.tags_of(args, facts)]
    assert (content_tag(CONTENT) in names, f"git-{COMMIT[:12]}-{CONTENT[:8]}" in names) == (own, own)
    assert (CONTENT_LABEL in facts.labels) is own


script = load_script("image_check")


def test_a_lock_is_refused_where_a_check_in_aws_would_ignore_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        script.parse_args(["--image", "a:1", "--lock", "own.txt"])
    assert caught.value.code == 2
    assert "--lock: only with --builder local" in capsys.readouterr().err
    script.parse_args(["--image", "a:1", "--builder", "local", "--lock", "own.txt"])


def test_the_options_of_a_check_reach_the_build_as_a_shell_would_quote_them() -> None:
    words = ["--python", "python3", "--cpu", "--no-torch", "--max-size", "3", "--allow", "a/*=keys of a test"]
    args = script.parse_args(["--image", "a:1", *words])
    assert shlex.split(script.check_flags(args)) == [
        *("--cpu", "--no-torch", "--python=python3", "--max-size=3", "--allow=a/*=keys of a test")
    ]


@pytest.mark.parametrize(
    ("image", "here", "pulls"),
    [
        ("r.io/a:1", True, True),
        ("127.0.0.1:5000/a", True, True),
        ("r.io/a@sha256:" + "1" * 64, True, False),
        ("r.io/a@sha256:" + "1" * 64, False, True),
        ("a1:1", True, False),
        ("a1:1", False, True),
        ("localhost/a1:1", True, False),
    ],
)
def test_a_tag_in_a_registry_is_pulled_although_an_older_copy_is_here(
    image: str, here: bool, pulls: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts, pulled = SimpleNamespace(user="1", entrypoint=("a",), command=(), size=1), []
    builder = SimpleNamespace(
        has=lambda _: here, inspect=lambda _: facts, pull=lambda name, _: pulled.append(name)
    )
    monkeypatch.setattr(script, "find_builder", lambda _: builder)
    monkeypatch.setattr(script, "login_to", lambda _: None)
    monkeypatch.setattr(script, "probe", lambda *_: [])
    script.check_here(script.parse_args(["--image", image, "--builder", "local", "--level", "quick"]))
    assert pulled == [image] * pulls


PROBE = ROOT / "docker" / "probe" / "container_probe.py"
OURS = "requirements-training.txt"
PACKAGES = {
    "right": "",
    "broken": "raise ImportError('undefined symbol')",
    "without a driver": "raise ImportError('libcuda.so.1: cannot open shared object file')",
}


def probed(
    folder: Path, packages: Mapping[str, Mapping[str, str]] | None, *checks: str, **flags: bool
) -> dict[str, Answer]:
    """The answers of the probe in a Python that has only the packages of `folder`."""
    asked = probe_request("full", packages, **({"cpu": True, "efa": False} | flags))
    line = [sys.executable, "-S", str(PROBE), json.dumps(asked | {"checks": list(checks)})]
    there = {"PYTHONPATH": str(folder)}
    done = subprocess.run(line, env=there, capture_output=True, text=True, timeout=60)
    return {one.check: one for one in probe_answers(checks, done.stdout, done.stderr)}


def install(folder: Path, name: str, version: str, code: str, *, requested: bool) -> None:
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text(code)
    facts = folder / f"{name}-{version}.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (facts / "RECORD").write_text(f"{name}/__init__.py,,\n")
    if requested:
        (facts / "REQUESTED").touch()


@pytest.mark.parametrize(
    ("lock", "kind", "requested"),
    [
        *itertools.product(("tiny==1.0", "tiny==2.0", "other==1.0"), PACKAGES, (True,)),
        *itertools.product(("", "tiny==1.0"), PACKAGES, (False,)),
        *itertools.product(("",), PACKAGES, (True,)),
    ],
)
def test_the_lock_of_the_image_decides_and_without_one_its_own_metadata(
    lock: str, kind: str, requested: bool, tmp_path: Path
) -> None:
    if list(Path("/dev").glob("nvidia[0-9]*")) and kind == "without a driver":
        pytest.skip("this machine has a driver")
    install(tmp_path, "tiny", "1.0", PACKAGES[kind], requested=requested)
    packages = demanded_packages([f"{lock} \\\n    --hash=sha256:{'a' * 64}\n"], "x86_64") if lock else None
    found = probed(tmp_path, packages, "versions", "imports")
    assert found["versions"].ok is (lock == "tiny==1.0" if lock else None)
    tried = lock.startswith("tiny") or (not lock and requested)
    expected = kind != "broken" if tried else True if lock else None
    assert found["imports"].ok is expected, found
    if not lock:
        assert "no lock is known" in found["versions"].says


def test_an_image_with_torch_and_without_transformers_makes_no_model_and_has_not_failed(
    tmp_path: Path,
) -> None:
    assert probed(tmp_path, None, "model-configuration")["model-configuration"].ok is False, "without torch"
    install(tmp_path, "torch", "2.6.0", "", requested=True)
    assert probed(tmp_path, None, "model-configuration")["model-configuration"].ok is None
    demanded = demanded_packages(["transformers==5.0\n"], "x86_64")
    assert probed(tmp_path, demanded, "model-configuration")["model-configuration"].ok is False


def test_an_image_without_torch_is_red_unless_it_may_lack_it(tmp_path: Path) -> None:
    checks = ("torch", "cuda", "nccl", "collective", "forward-backward", "compile")
    for no_torch in (False, True):
        found = probed(tmp_path, None, *checks, no_torch=no_torch)
        assert {one.ok for one in found.values()} == {None if no_torch else False}, found
        assert all("torch is not in the image" in one.says for one in found.values()), found


def test_a_requested_gpu_that_is_not_there_is_red(tmp_path: Path) -> None:
    if list(Path("/dev").glob("nvidia[0-9]*")):
        pytest.skip("this machine has a GPU")
    code = "class version: cuda = '12.6'\n__version__ = '2.9'\nclass cuda: is_available = lambda: False\n"
    install(tmp_path, "torch", "2.9", code, requested=True)
    for gpus in (True, False):
        assert probed(tmp_path, None, "cuda", cpu=False, gpus=gpus)["cuda"].ok is not gpus


def test_an_image_makes_the_configuration_of_a_model() -> None:
    """With the transformers of this environment, as the probe calls it in an image."""
    pytest.importorskip("transformers")
    asked = probe_request("full", None, cpu=True, efa=False) | {"checks": ["model-configuration"]}
    line = [sys.executable, str(PROBE), json.dumps(asked)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=240)
    (found,) = probe_answers(["model-configuration"], done.stdout, done.stderr)
    assert found.ok, found


def digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


@pytest.mark.parametrize(
    ("label", "here", "expected"),
    [
        ("", "", None),
        (f"{OURS}@{{ours}}", "", "ours"),
        (f"{OURS}@{'0' * 64}", "", None),
        (OURS, "", None),
        (f"{OURS}@{{theirs}}", OURS, "theirs"),
        (f"{OURS}@{{ours}}", OURS, "ours"),
        ("requirements-own.txt@{theirs}", "requirements-own.txt", "theirs"),
        ("requirements-own.txt@{theirs}", "", None),
        (f"{OURS}@{{ours}} requirements-own.txt@{{theirs}}", "", None),
        ("../x@{theirs}", "", None),
    ],
)
def test_our_own_lock_decides_about_an_image_of_ours_only(
    label: str, here: str, expected: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ours, theirs = (ROOT / OURS).read_bytes(), b"tiny==1.0\nnumpy>=1\n"
    if here:
        (tmp_path / here).write_bytes(theirs)
    label = label.format(ours=digest(ours), theirs=digest(theirs))
    facts = SimpleNamespace(labels={LOCKS_LABEL: label} if label else {}, architecture="amd64")
    found = script.packages_of(script.parse_args(["--image", "a:1", "--builder", "local"]), facts)
    if expected is None:
        assert found is None
    elif expected == "theirs":
        assert set(map(tuple, (pins.items() for pins in found.values()))) == {(("tiny", "1.0"),)}
    else:
        for python, pins in found.items():
            marker = {"python_version": python, "python_full_version": f"{python}.9"}
            marker |= {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"}
            marker |= {"platform_machine": "x86_64"}
            assert pins == {pin.name: pin.version for pin in read_pins(ours.decode()) if pin.applies(marker)}


def test_a_lock_that_pins_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "loose.txt").write_text("numpy>=1\n")
    words = ["--image", "a:1", "--builder", "local", "--lock", str(tmp_path / "loose.txt")]
    with pytest.raises(ConfigError, match="no package is pinned to one version"):
        script.packages_of(script.parse_args(words), SimpleNamespace(labels={}, architecture="amd64"))


@pytest.mark.parametrize(
    ("answers", "code", "says"),
    [
        ([True, True], 0, "every check passed"),
        ([True, None], 0, "no check failed; unknown: b"),
        ([False, None], 1, "1 of 2 failed: a"),
    ],
)
def test_what_is_unknown_is_neither_a_yes_nor_a_failure(
    answers: list[bool | None], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    args = script.parse_args(["--image", "a:1", "--builder", "local"])
    found = [Answer(name, ok, "words") for name, ok in zip("ab", answers, strict=True)]
    assert script.report(args, found) == code
    assert says in capsys.readouterr().out
