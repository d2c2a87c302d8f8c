"""Whether a registry still holds an image by its digest: what can be run again tomorrow.

ECR is asked by its API, any other registry by the distribution API without a login.
"""

from trainyard.errors import ConfigError, ServiceError, VerificationError
from trainyard.gateways.images.ecr_repository import login_to
from trainyard.gateways.images.local_builder import Login
from trainyard.gateways.images.registry import Registry

_SECONDS = 10.0
"""Of one attempt: a proof must not hang where there is no way to the registry."""


def look_for(name: str, digest: str) -> tuple[str | None, str]:
    """Why the image cannot be pulled again (None: nothing is known against it), and what was found.

    A registry that cannot be asked is no reason against it; that it was not asked is what was found.
    """
    host, slash, rest = name.partition("/")
    if not slash or not ("." in host or ":" in host or host == "localhost"):
        return None, "the image's registry is not named (TRAINYARD_IMAGE_DIGEST), so it was not asked"
    repository = rest.partition(":")[0]
    try:
        registry = Registry(login_to(host) or Login(host, "", ""), attempts=2, seconds=_SECONDS)
        held = registry.digest_of(repository, digest)
    except VerificationError as error:
        return str(error), ""
    except (ConfigError, ServiceError) as error:
        return None, f"the image's registry could not be asked: {error}"
    if held is None:
        return f"{host} holds no image {repository}@{digest}: it was deleted, or never pushed", ""
    return None, f"{host} holds the image under that digest"
