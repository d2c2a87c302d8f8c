"""docker and buildah by one contract: the calls, the answers, and the path of a password."""

import json
import os
import sys
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import cast

import pytest
from tests.cases import each_case
from tests.unit.gateways.images.conftest import Install, Server

from trainyard.errors import CheckFailedError, ConfigError, ServiceError, ServiceTroubleError
from trainyard.gateways.images import local_builder
from trainyard.gateways.images.local_builder import LocalBuilder, Login, find_builder
from trainyard.image.building.build_request import BuildRequest

NAMES = ("docker", "buildah")


@dataclass(frozen=True)
class Plan:
    image: str = "trainer"
    tag: str = "content-1"
    platform: str = "linux/amd64"
    target: str = ""
    labels: Mapping[str, str] = field(default_factory=lambda: {"a.b": "c=d", "e": "f g"})
    all_build_args: Mapping[str, str] = field(default_factory=lambda: {"BASE": "x:1"})


@pytest.fixture(params=NAMES)
def builder(request: pytest.FixtureRequest, install: Install) -> LocalBuilder:
    install(request.param)
    return find_builder()


def calls(home: Path, name: str) -> list[list[str]]:
    """The words of every call so far."""
    return [json.loads(line) for line in (home / f"{name}-calls").read_text().splitlines()]


def build(builder: LocalBuilder, home: Path, plan: Plan | None = None, cache: str = "") -> list[str]:
    said: list[str] = []
    request = cast("BuildRequest", plan or Plan())
    builder.build(request, context=home, dockerfile=home / "Dockerfile", cache=cache, on_line=said.append)
    return said


@each_case("present", [(), ("docker",), ("buildah",), NAMES])
@each_case("answers", [True, False])
@each_case("wanted", ["", *NAMES])
def test_docker_is_taken_where_its_daemon_answers_else_buildah(
    present: tuple[str, ...], answers: bool, wanted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in present:
        (tmp_path / name).write_text(f"#!/bin/sh\n[ $1 != info ] || exit {0 if answers else 1}\n")
        (tmp_path / name).chmod(0o755)
    works = [name for name in present if name == "buildah" or answers]
    chosen = [name for name in works if wanted in ("", name)]
    if chosen:
        assert find_builder(wanted).program == chosen[0]
        return
    missing = {"docker": "docker does not answer", "buildah": "buildah is not installed"}
    words = missing.get(wanted, "docker does not answer, and buildah is not installed")
    with pytest.raises(ConfigError, match=rf"machine: {words}\. .*--builder codebuild"):
        find_builder(wanted)


def test_a_build_hands_over_its_plan_and_shows_its_image(builder: LocalBuilder, tmp_path: Path) -> None:
    build(builder, tmp_path, Plan(target="runtime"))
    words = calls(tmp_path, builder.program)[-1]
    assert words[0] == {"docker": "build", "buildah": "bud"}[builder.program]
    assert words[-1] == str(tmp_path)
    for option in (
        *(f"--file={tmp_path}/Dockerfile", "--platform=linux/amd64", "--tag=trainer:content-1"),
        *("--tag=trainer:latest", "--label=a.b=c=d", "--label=e=f g", "--build-arg=BASE=x:1"),
        "--target=runtime",
    ):
        assert option in words
    assert not any(word.startswith("--cache") for word in words)
    for name in ("trainer:content-1", "trainer:latest"):
        assert builder.has(name)
        facts = builder.inspect(name)
        assert (facts.user, facts.entrypoint, facts.command) == ("1000", ("python",), ())
        assert facts.labels == {"a.b": "c=d", "e": "f g"}
        assert (facts.image_id, facts.architecture, facts.size) == ("c" * 64, "amd64", 10)


def test_an_image_that_is_not_here_is_said_with_the_way_to_get_it(builder: LocalBuilder) -> None:
    assert not builder.has("other")
    with pytest.raises(ConfigError, match=rf"other: {builder.program} has no such image .*image build"):
        builder.inspect("other")


def test_a_registrys_cache_is_used_where_the_builder_can(install: Install, tmp_path: Path) -> None:
    install(*NAMES)
    reference = "registry.example/cache:main"
    build(LocalBuilder("docker"), tmp_path, cache=reference)
    build(LocalBuilder("docker", buildx=True), tmp_path, cache=reference)
    build(LocalBuilder("docker", buildx=True), tmp_path)
    build(LocalBuilder("buildah"), tmp_path, cache=reference)
    plain, extended, without = calls(tmp_path, "docker")
    assert not any(word.startswith("--cache") for word in [*plain, *without])
    assert extended[:3] == without[:3] == ["buildx", "build", "--load"]
    assert f"--cache-from=type=registry,ref={reference}" in extended
    assert any(word.startswith(f"--cache-to=type=registry,ref={reference},mode=max") for word in extended)
    (words,) = calls(tmp_path, "buildah")
    assert {f"--cache-from={reference}", f"--cache-to={reference}"} <= set(words)


def test_docker_writes_sbom_and_provenance_where_its_image_store_keeps_them(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise buildx refuses the options: "Attestation is not supported for the docker driver"."""
    install("docker")
    for buildx, store in product(
        ("", "1"), ("[[driver-type io.containerd.snapshotter.v1]]", "[[Filesystem]]")
    ):
        monkeypatch.setenv("STAND_IN_STORE", store)
        if buildx:
            monkeypatch.setenv("STAND_IN_BUILDX", buildx)
        build(find_builder("docker"), tmp_path)
        words = calls(tmp_path, "docker")[-1]
        written = {"--sbom=true", "--provenance=mode=max"} <= set(words)
        assert written is bool(buildx and "snapshotter" in store)


def test_a_build_that_fails_ends_with_the_end_of_its_log(
    builder: LocalBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_FAILS", {"docker": "build", "buildah": "bud"}[builder.program])
    with pytest.raises(CheckFailedError) as caught:
        build(builder, tmp_path)
    first, *log = str(caught.value).splitlines()
    assert first.startswith(f"trainer:content-1 could not be built: {builder.program} ended with 1.")
    assert log[-1].startswith("  the stand-in fails at")


def test_only_the_end_of_a_long_log_is_repeated_and_a_build_has_a_time_limit(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install()
    program = tmp_path / "bin" / "buildah"
    program.write_text("#!/bin/sh\ni=0\nwhile [ $i -lt 40 ]; do echo line $i; i=$((i+1)); done\nread x < f\n")
    program.chmod(0o755)
    os.mkfifo(tmp_path / "f")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(local_builder, "BUILD_SECONDS", 0.5)
    with pytest.raises(CheckFailedError, match="did not end within") as caught:
        build(LocalBuilder("buildah"), tmp_path)
    assert str(caught.value).splitlines()[1:] == [f"  line {number}" for number in range(25, 40)]


def test_a_tag_stands_for_the_image_or_says_why_not(
    builder: LocalBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(builder, tmp_path)
    builder.tag("trainer:latest", "trainer:1.2.3")
    assert calls(tmp_path, builder.program)[-1] == ["tag", "trainer:latest", "trainer:1.2.3"]
    monkeypatch.setenv("STAND_IN_FAILS", "tag")
    with pytest.raises(ServiceTroubleError, match=r"could not be tagged trainer:2: the stand-in fails"):
        builder.tag("trainer:latest", "trainer:2")


@pytest.mark.parametrize("password", ["", "password"])
@pytest.mark.parametrize("action", ["pull", "push"])
def test_a_password_reaches_the_builder_but_no_command_line(
    builder: LocalBuilder, tmp_path: Path, server: Server, action: str, password: str
) -> None:
    login = Login(server.host, "AWS", password)
    target = f"{server.host}/team/trainer:1"
    if action == "pull":
        builder.pull(target, login)
        assert builder.has(target)
    else:
        digest = builder.push("trainer:1", target, login)
        assert server.tags("team/trainer") == {"1": digest}
    made = calls(tmp_path, builder.program)
    assert not any(part == "password" for words in made for word in words for part in word.split("="))
    plain = [] if builder.is_docker else ["--tls-verify=false"]
    said = ["login", "--username", "AWS", "--password-stdin", server.host]
    assert (said in made) == bool(password and builder.is_docker)
    auth = [word for words in made for word in words if word.startswith("--authfile=")]
    assert len(auth) == bool(password and not builder.is_docker)
    assert not any(Path(word.partition("=")[2]).exists() for word in auth), "no login is left"
    assert set(plain) <= set(next(words for words in made if words[0] == action))


def test_buildah_gets_the_logins_of_the_user_beside_ours(install: Install, tmp_path: Path) -> None:
    install()
    own = tmp_path / ".docker" / "config.json"
    own.parent.mkdir()
    own.write_text('{"auths": {"quay.io": {}}, "credHelpers": {"a": "b"}}')
    program = tmp_path / "bin" / "buildah"
    program.write_text('#!/bin/sh\nPATH=/usr/bin:/bin cp "${2#--authfile=}" "$HOME/seen"\n')
    program.chmod(0o755)
    LocalBuilder("buildah").pull("r.example/i", Login("r.example", "AWS", "password"))
    seen = json.loads((tmp_path / "seen").read_text())
    assert (set(seen["auths"]), seen["credHelpers"]) == ({"quay.io", "r.example"}, {"a": "b"})


@pytest.mark.parametrize("action", ["pull", "push"])
def test_what_a_registry_refuses_is_said_with_the_builders_last_line(
    builder: LocalBuilder, server: Server, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    target, login = f"{server.host}/team/trainer:1", Login(server.host, "AWS", "password")
    run: dict[str, Callable[[], object]] = {
        "pull": lambda: builder.pull(target, login),
        "push": lambda: builder.push("trainer:1", target, login),
    }
    monkeypatch.setenv("STAND_IN_FAILS", action)
    with pytest.raises(ServiceError, match=f"the stand-in fails at {action}"):
        run[action]()
    if builder.is_docker:  # buildah gets a file, and logs in where it pulls
        monkeypatch.setenv("STAND_IN_FAILS", "login")
        with pytest.raises(ServiceError, match="the stand-in fails at login"):
            run[action]()


def test_a_container_of_buildah_runs_and_is_always_removed(install: Install, tmp_path: Path) -> None:
    install("buildah")
    program = "import sys; print(sys.stdin.read().upper()); sys.exit(3)"
    line = [sys.executable, "-c", program]
    done = LocalBuilder("buildah").run("trainer:1", line, stdin="abc", seconds=20, gpus=False)
    assert (done.exit_code, done.stdout) == (3, "ABC\n")
    made = calls(tmp_path, "buildah")
    assert made[0] == ["from", "--pull-never", "trainer:1"]
    assert made[-1] == ["rm", "trainer-working-container"]


def test_a_container_that_cannot_be_made_runs_nothing(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("buildah")
    monkeypatch.setenv("STAND_IN_FAILS", "from")
    done = LocalBuilder("buildah").run("trainer:1", ["true"], stdin="", seconds=20, gpus=False)
    assert (done.ok, done.stderr) == (False, "the stand-in fails at from\n")
    assert [words[0] for words in calls(tmp_path, "buildah")] == ["from"]


def test_a_container_of_docker_is_removed_and_sees_wanted_gpus(install: Install, tmp_path: Path) -> None:
    install("docker")
    line = ["python", "-c", '{"checks": ["user"]}']
    for gpus in (False, True):
        done = LocalBuilder("docker").run("trainer:1", line, stdin="", seconds=20, gpus=gpus)
        assert done.ok
        assert "TRAINYARD-PROBE" in done.stdout
        words = calls(tmp_path, "docker")[-1]
        assert {"--rm", "--interactive", "--entrypoint=python"} <= set(words)
        assert ("--gpus=all" in words) == gpus
        assert words[-3:] == ["trainer:1", "-c", '{"checks": ["user"]}']


def test_an_image_is_saved_as_an_archive_or_says_why_not(
    builder: LocalBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder.save("trainer:1", tmp_path / "image.tar")
    with tarfile.open(tmp_path / "image.tar") as archive:
        assert "manifest.json" in archive.getnames()
    monkeypatch.setenv("STAND_IN_FAILS", {"docker": "save", "buildah": "push"}[builder.program])
    with pytest.raises(ServiceTroubleError, match=r"could not be saved to be checked: the stand-in fails"):
        builder.save("trainer:1", tmp_path / "again.tar")
