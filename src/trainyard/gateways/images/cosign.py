"""Sign an image in a registry with cosign 2, and verify the signature that the registry then holds.

The signature names the digest and is kept beside the image, where `cosign verify` and admission policies look
for it. No transparency log gets the name of the image.
https://docs.sigstore.dev/cosign/signing/signing_with_containers/
"""

import os
import shutil
from pathlib import Path

from trainyard.errors import ConfigError, ServiceError, VerificationError
from trainyard.gateways.images.local_builder import Login, auth_file, is_loopback, last_line
from trainyard.gateways.process import Finished, run_program

_SECONDS = 300.0


def require_cosign() -> None:
    """Raise ConfigError if cosign is not installed, before anything is pushed."""
    if shutil.which("cosign") is None:
        raise ConfigError("--sign: cosign is not installed: https://docs.sigstore.dev/cosign/system_config/")


def sign_image(name: str, digest: str, key: str, login: Login) -> None:
    """Sign the image `name`@`digest`, unless it is signed already, with a key (a file, or an address such as awskms:///alias/a).

    COSIGN_PASSWORD holds the password of a key in a file. Raises ServiceError if cosign cannot sign, and
    VerificationError if the registry's signature does not verify.
    """
    with auth_file(login) as auth:
        public = auth.with_name("cosign.pub")
        plain = ["--allow-http-registry"] if is_loopback(login.host) else []
        target = f"{name}@{digest}"
        sign = ["sign", "--yes", "--tlog-upload=false", f"--key={key}", *plain, target]
        verify = ["verify", "--insecure-ignore-tlog=true", f"--key={public}", *plain, target]
        done = _run(auth, ["public-key", f"--key={key}", f"--outfile={public}"])
        if done.ok and _run(auth, verify).ok:
            return  # by an earlier push; a second signature would move a tag, which ECR may refuse
        done = _run(auth, sign) if done.ok else done
        if not done.ok:
            raise ServiceError(f"cosign could not sign {target}: {last_line(done)}")
        done = _run(auth, verify)
        if not done.ok:
            raise VerificationError(f"{target}: the signature does not verify: {last_line(done)}")


def _run(auth: Path, words: list[str]) -> Finished:
    environment = {**os.environ, "DOCKER_CONFIG": str(auth.parent)}
    return run_program(["cosign", *words], seconds=_SECONDS, environment=environment)
