"""Ask whether a registry still holds an image by its digest, so that it can be pulled again.

ECR is asked by its API, any other registry by the distribution API without a login. Name and digest come from
a run's record, which anybody may have written: the answer comes within seconds, whatever host they name.
"""

import re
import threading
from concurrent.futures import Future

from trainyard.errors import ConfigError, ServiceError, TrainyardError, VerificationError
from trainyard.gateways.images.ecr_repository import login_to
from trainyard.gateways.images.local_builder import Login
from trainyard.gateways.images.registry import Registry

_ATTEMPT_SECONDS = 3.0
_SECONDS = 8.0
"""For the whole answer: a registry may send its bytes one by one, or send us on to others."""
_DIGEST = re.compile(r"(?:sha256:)?([0-9a-f]{64})")
_HOST = re.compile(r"[A-Za-z0-9.-]{1,253}(?::[0-9]{1,5})?|\[[0-9a-fA-F:]{2,39}\](?::[0-9]{1,5})?")
_REPOSITORY = re.compile(r"[a-z0-9][a-z0-9._/-]{0,254}")
"""https://github.com/opencontainers/distribution-spec/blob/main/spec.md#pulling-manifests"""
_Found = tuple[str | None, str]


def look_for(name: str, digest: str, *, seconds: float = _SECONDS) -> _Found:
    """Why the image cannot be pulled again (None: nothing is known against it), and what was found.

    A registry that cannot be asked is no such reason; the observation then says that it was not asked.
    """
    host, slash, rest = name.partition("/")
    if not slash or not ("." in host or ":" in host or host == "localhost"):
        return None, "the image's registry is not named (TRAINYARD_IMAGE_DIGEST), so it was not asked"
    repository, digits = rest.partition(":")[0], _DIGEST.fullmatch(digest)
    if not (_HOST.fullmatch(host) and _REPOSITORY.fullmatch(repository) and digits):
        return None, "the image's name or digest on record is none, so no registry was asked"
    answer: Future[_Found] = Future()

    def ask() -> None:
        try:
            answer.set_result(_asked(host, repository, f"sha256:{digits[1]}"))
        except (TrainyardError, OSError, ValueError) as error:
            answer.set_exception(error)

    threading.Thread(target=ask, name="registry", daemon=True).start()
    try:
        return answer.result(seconds)
    except TimeoutError:
        return None, f"the image's registry could not be asked: {host} did not answer within {seconds:.0f} s"


def _asked(host: str, repository: str, digest: str) -> _Found:
    try:
        registry = Registry(login_to(host) or Login(host, "", ""), attempts=2, seconds=_ATTEMPT_SECONDS)
        held = registry.digest_of(repository, digest)
    except VerificationError as error:
        return str(error), ""
    except (ConfigError, ServiceError) as error:
        return None, f"the image's registry could not be asked: {error}"
    if held is None:
        return f"{host} holds no image {repository}@{digest}: it was deleted, or never pushed", ""
    return None, f"{host} holds the image under that digest"
