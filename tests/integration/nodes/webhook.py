"""An admission webhook on loopback, which a real API server calls when pods are created."""

import base64
import ssl
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.answering import answering

Json = dict[str, Any]


@contextmanager
def admission_webhook(
    nodes: Any, folder: Path, kind: str, name: str, review: Callable[[Json], Json], **selector: Json
) -> Iterator[None]:
    """Register a webhook of this kind (`mutating`, `validating`) while the block runs.

    `review` answers a request for a pod: the fields of the response beside its uid.
    """
    line = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -keyout key -out crt -subj /CN=127.0.0.1"
    names = ("-addext", "subjectAltName=IP:127.0.0.1")
    subprocess.run([*line.split(), *names], cwd=folder, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "crt", folder / "key")

    def answer(_method: str, _path: str, body: Any, _headers: object) -> tuple[int, Json]:
        response = {"uid": body["request"]["uid"], **review(body["request"])}
        review_of = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
        return 200, {**review_of, "response": response}

    path = f"/apis/admissionregistration.k8s.io/v1/{kind}webhookconfigurations"
    with answering(answer, tls=context) as url:
        authority = base64.b64encode((folder / "crt").read_bytes()).decode()
        rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
        hook = {
            "name": f"{name}.example.com",
            "clientConfig": {"url": url, "caBundle": authority},
            "rules": [rule],
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            **selector,
        }
        nodes.request("POST", path, {"metadata": {"name": name}, "webhooks": [hook]})
        try:
            yield
        finally:
            nodes.request("DELETE", f"{path}/{name}")
