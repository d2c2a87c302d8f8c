"""Build, run, inspect and push images on this machine, with docker or with buildah.

docker is used if its daemon answers, else buildah, which needs no daemon. Nothing here judges an image.
"""

import base64
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.errors import CheckFailedError, ConfigError, ServiceError, ServiceTroubleError
from trainyard.gateways.http_requests import is_loopback
from trainyard.gateways.process import Finished, run_program, run_streamed

if TYPE_CHECKING:
    from trainyard.image.building.build_request import BuildRequest
    from trainyard.image.building.build_secrets import BuildSecret

BUILD_SECONDS, PUSH_SECONDS = 7200.0, 3600.0
_ASK_SECONDS = 60.0
_SAVE_SECONDS = 1800.0
_TAIL_LINES = 15
# https://docs.docker.com/engine/storage/containerd/
_CONTAINERD_STORE = "io.containerd.snapshotter.v1"


@dataclass(frozen=True)
class ImageFacts:
    """The builder's facts about an image."""

    user: str
    """The user that USER set; empty means root."""
    entrypoint: tuple[str, ...]
    command: tuple[str, ...]
    labels: Mapping[str, str]
    architecture: str
    image_id: str
    """The digest of its configuration, 64 hex digits."""
    size: int | None
    """Bytes of all layers, unpacked; None if the builder does not report it."""


class LocalBuilder:
    """Runs `program`, which is docker or buildah.

    `attests` is whether docker keeps attestations beside an image; its classic image store does not.
    """

    def __init__(self, program: str, *, buildx: bool = False, attests: bool = False) -> None:
        self.program = program
        self._buildx, self._attests = buildx, buildx and attests

    @property
    def is_docker(self) -> bool:
        return self.program == "docker"

    def build(
        self,
        plan: "BuildRequest",
        *,
        context: Path,
        dockerfile: Path,
        cache: str,
        on_line: Callable[[str], None],
        secrets: "Sequence[BuildSecret]" = (),
        logins: Sequence["Login"] = (),
    ) -> None:
        """Build an image and keep it on this machine; `cache` is a reference in a registry, or empty.

        `logins` are those for its bases and the cache. Raises CheckFailedError with the end of the log when
        the build fails, ConfigError for secrets without buildx.
        """
        if secrets and self.is_docker and not self._buildx:
            raise ConfigError("--secret: docker needs buildx to pass secrets to a build. Install buildx.")
        name = f"{plan.image}:{plan.tag}"
        options = [f"--file={dockerfile}", f"--platform={plan.platform}"]
        options += [f"--tag={name}", f"--tag={plan.image}:latest"]
        options += [f"--label={key}={value}" for key, value in plan.labels.items()]
        options += [f"--build-arg={key}={value}" for key, value in plan.all_build_args.items()]
        options += [f"--target={plan.target}"] if plan.target else []
        options += [f"--secret=id={one.id},{one.kind}={one.place}" for one in secrets]
        lines: list[str] = []

        def note(line: str) -> None:
            lines.append(line)
            on_line(line)

        with self._logged_in(*logins) as auth:
            command = [*self._build_words(cache), *auth, *options, str(context)]
            code = run_streamed(command, seconds=BUILD_SECONDS, on_line=note)
        if code != 0:
            how = f"ended with {code}" if code is not None else f"did not end within {BUILD_SECONDS:.0f} s"
            raise CheckFailedError(
                f"{name} could not be built: {self.program} {how}. The end of its log:\n"
                + "\n".join(f"  {line}" for line in lines[-_TAIL_LINES:])
            )

    def has(self, image: str) -> bool:
        """Return whether the image is on this machine."""
        return self._inspect(image).ok

    def inspect(self, image: str) -> ImageFacts:
        """Return the declarations of the image. Raises ConfigError if it is not on this machine."""
        done = self._inspect(image)
        if not done.ok:
            raise ConfigError(
                f"{image}: {self.program} has no such image here. Build it with trainyard image build, or "
                "pull it."
            )
        found = json.loads(done.stdout)
        return _docker_facts(found[0]) if self.is_docker else _buildah_facts(found)

    def _inspect(self, image: str) -> Finished:
        kind = ["image", "inspect"] if self.is_docker else ["inspect", "--type", "image"]
        return self._run(*kind, image)

    def tag(self, image: str, name: str) -> None:
        """Give an image of this machine the name `name` as well. Raises ServiceTroubleError if that fails."""
        done = self._run("tag", image, name)
        if not done.ok:
            raise ServiceTroubleError(f"{image} could not be tagged {name}: {last_line(done)}")

    def pull(self, image: str, login: "Login | None" = None) -> None:
        """Fetch an image from its registry. Raises ServiceError when that is refused or fails."""
        words = [] if self.is_docker else _plain_http(image)
        with self._logged_in(login) as auth:
            done = run_program([self.program, "pull", *auth, *words, image], seconds=PUSH_SECONDS)
        if not done.ok:
            raise ServiceError(f"{image} could not be pulled: {last_line(done)}")

    def run(self, image: str, command: Sequence[str], *, stdin: str, seconds: float, gpus: bool) -> Finished:
        """Run a command in a container of the image, with its user and network; then remove the container."""
        if self.is_docker:
            words = ["run", "--rm", "--interactive", "--shm-size=1g", f"--entrypoint={command[0]}"]
            words += ["--gpus=all"] if gpus else []
            return run_program(["docker", *words, image, *command[1:]], seconds=seconds, stdin=stdin)
        made = self._run("from", "--pull-never", image)
        if not made.ok:
            return made
        container = made.stdout.strip()
        try:
            return run_program(["buildah", "run", container, "--", *command], seconds=seconds, stdin=stdin)
        finally:
            self._run("rm", container)

    def save(self, image: str, target: Path) -> None:
        """Write the image with its layers as a docker archive. Raises ServiceTroubleError if that fails."""
        words = ["save", "--output", str(target), image]
        if not self.is_docker:
            words = ["push", "--quiet", image, f"docker-archive:{target}"]
        done = run_program([self.program, *words], seconds=_SAVE_SECONDS)
        if not done.ok:
            raise ServiceTroubleError(f"{image} could not be saved to be checked: {last_line(done)}")

    def push(self, image: str, target: str, login: "Login | None") -> str:
        """Push the image under the name `target`; return the digest that the builder reports.

        Raises ServiceError when the registry refuses.
        """
        with self._logged_in(login) as auth, tempfile.NamedTemporaryFile() as file:
            if self.is_docker:
                self._run("tag", image, target)
                done = run_program(["docker", "push", target], seconds=PUSH_SECONDS)
                found = re.search(r"digest: (sha256:[0-9a-f]{64})", done.stdout)
                digest = found[1] if found else ""
            else:
                words = ["push", *auth, f"--digestfile={file.name}", *_plain_http(target), "--format=oci"]
                done = run_program(["buildah", *words, image, f"docker://{target}"], seconds=PUSH_SECONDS)
                digest = Path(file.name).read_text().strip()
        if not done.ok or not digest:
            raise ServiceError(f"{target} could not be pushed: {last_line(done)}")
        return digest

    def _build_words(self, cache: str) -> list[str]:
        if not self.is_docker:
            # OCI images know no SHELL: buildah's own format ignores `SHELL ["/bin/bash", "-o", "pipefail",
            # "-c"]`, and a RUN whose pipe fails passes.
            words = ["buildah", "bud", "--layers", "--format=docker"]
            return words + ([f"--cache-from={cache}", f"--cache-to={cache}"] if cache else [])
        if not self._buildx:
            return ["docker", "build"]
        words = ["docker", "buildx", "build", "--load", "--progress=plain"]
        # BuildKit lists the packages that it finds in the image, and records how it was built. docker pushes
        # both with the image. https://docs.docker.com/build/metadata/attestations/
        words += ["--sbom=true", "--provenance=mode=max"] if self._attests else []
        if cache:
            options = "mode=max,image-manifest=true,oci-mediatypes=true"
            words += [f"--cache-from=type=registry,ref={cache}"]
            words += [f"--cache-to=type=registry,ref={cache},{options}"]
        return words

    @contextmanager
    def _logged_in(self, *logins: "Login | None") -> Iterator[list[str]]:
        """Log in to registries, and yield the options of the builder for it. Raises ServiceError.

        docker keeps a login where the user's configuration says. buildah would keep it in a file, as text, so
        it gets a temporary one.
        """
        needed = [login for login in logins if login and login.password]
        for login in needed if self.is_docker else ():
            words = ["docker", "login", "--username", login.user, "--password-stdin", login.host]
            done = run_program(words, seconds=_ASK_SECONDS, stdin=login.password)
            if not done.ok:
                raise ServiceError(f"docker could not log in to {login.host}: {last_line(done)}")
        if self.is_docker or not needed:
            yield []
            return
        own = next((each for each in _login_files() if os.access(each, os.R_OK)), None)
        with login_file(*needed, own=own) as file:
            yield [f"--authfile={file}"]

    def _run(self, *words: str) -> Finished:
        return run_program([self.program, *words], seconds=_ASK_SECONDS)


@dataclass(frozen=True)
class Login:
    """The login for a registry. The password is a secret: it is in no command line and no log."""

    host: str
    user: str
    password: str


def find_builder(wanted: str = "") -> LocalBuilder:
    """The builder of this machine, or `wanted` (docker, buildah). Raises ConfigError if there is none."""
    if wanted in ("", "docker"):
        info = run_program(["docker", "info", "--format={{.DriverStatus}}"], seconds=_ASK_SECONDS)
        if info.ok:
            buildx = run_program(["docker", "buildx", "version"], seconds=_ASK_SECONDS).ok
            return LocalBuilder("docker", buildx=buildx, attests=_CONTAINERD_STORE in info.stdout)
    if wanted in ("", "buildah") and run_program(["buildah", "--version"], seconds=_ASK_SECONDS).ok:
        return LocalBuilder("buildah")
    known = {"docker": "docker does not answer", "buildah": "buildah is not installed"}
    missing = known.get(wanted, "docker does not answer, and buildah is not installed")
    raise ConfigError(
        f"No image can be built, checked or pushed on this machine: {missing}. Start docker or install "
        "buildah. Builds and checks also run in AWS, with --builder codebuild."
    )


@contextmanager
def login_file(*logins: Login, own: Path | None = None) -> Iterator[Path]:
    """A temporary file with these logins and those in the file `own`, in the format of docker's config.json.

    Only this user can enter its folder. Raises ConfigError if `own` cannot be read.
    """
    try:
        known = json.loads(own.read_bytes() or b"{}") if own else {}
        others = {**(known.get("auths") or {})}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise ConfigError(f"{own}: the logins for registries cannot be read ({error})") from None
    secrets = {login.host: f"{login.user}:{login.password}" for login in logins if login.password}
    auths = {host: {"auth": base64.b64encode(secret.encode()).decode()} for host, secret in secrets.items()}
    with tempfile.TemporaryDirectory(prefix="trainyard-") as folder:
        path = Path(folder, "config.json")
        path.write_text(json.dumps({**known, "auths": {**others, **auths}}))
        yield path


def _login_files() -> Iterator[Path]:
    """Yield the files in which buildah looks for logins: containers-auth.json(5)."""
    if own := os.environ.get("REGISTRY_AUTH_FILE"):
        yield Path(own)
    yield Path(os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}", "containers", "auth.json")
    yield Path(f"/run/containers/{os.getuid()}/auth.json")
    yield Path.home() / ".config" / "containers" / "auth.json"
    yield Path.home() / ".docker" / "config.json"


def _plain_http(image: str) -> list[str]:
    return ["--tls-verify=false"] if is_loopback(image.partition("/")[0]) else []


def last_line(done: Finished) -> str:
    """Return the last line that a program printed, which names the reason for its failure."""
    lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    return lines[-1].strip()[:400] if lines else f"it ended with {done.exit_code}"


def _docker_facts(found: Mapping[str, Any]) -> ImageFacts:
    architecture = str(found.get("Architecture", ""))
    return _facts(found.get("Config") or {}, architecture, found.get("Size"), image_id=found["Id"])


def _buildah_facts(found: Mapping[str, Any]) -> ImageFacts:
    image = found.get("OCIv1") or {}
    manifest = json.loads(found.get("Manifest") or "{}")
    layers = manifest.get("layers") or ()
    size = sum(layer.get("size", 0) for layer in layers) if layers else None
    architecture = str(image.get("architecture", ""))
    return _facts(image.get("config") or {}, architecture, size, image_id=found["FromImageID"])


def _facts(config: Mapping[str, Any], architecture: str, size: int | None, *, image_id: str) -> ImageFacts:
    return ImageFacts(
        user=str(config.get("User") or ""),
        entrypoint=tuple(config.get("Entrypoint") or ()),
        command=tuple(config.get("Cmd") or ()),
        labels=dict(config.get("Labels") or {}),
        architecture=architecture,
        image_id=image_id.removeprefix("sha256:"),
        size=size,
    )
