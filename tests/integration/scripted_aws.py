"""AWS for the tests of images: moto's server behind a proxy that fills its gaps.

moto's builds end at once, without logs; here a build replays a script of phases and lines. moto's ECR has no
registry and no scan; here is one, over the same port. Everything else is forwarded to moto unchanged.
"""

import base64
import hashlib
import json
import re
import threading
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from io import BytesIO
from typing import Any

import boto3
from tests.answering import QuietHandler, serving

ACCOUNT, REGION = "123456789012", "us-west-2"
BEFORE = ("SUBMITTED", "QUEUED", "PROVISIONING", "DOWNLOAD_SOURCE", "INSTALL", "PRE_BUILD", "BUILD")
AFTER = ("POST_BUILD", "UPLOAD_ARTIFACTS", "FINALIZING")
PHASES = (*BEFORE, *AFTER)
_MOST_TOKEN = 64
"""The greatest length of an idempotency token."""
_HOPS = ("connection", "expect", "content-length", "transfer-encoding")
_STATUS = {"403": 403, "400": 400, "503": 503, "SlowDown": 503, "AccessDenied": 403, "InternalError": 500}
"""An error code of S3 -> its HTTP status, the only content of an answer to HEAD; else 400."""
_SETTINGS = (
    *("versioning", "encryption", "publicAccessBlock", "ownershipControls"),
    *("lifecycle", "policy", "versions"),
)
_KEPT = ("Content-Type", "Location", "ETag", "Docker-Content-Digest", "x-amzn-RequestId", "x-amzn-errortype")


@dataclass(frozen=True)
class Script:
    """The course of a build: each poll is four phases further."""

    status: str = "SUCCEEDED"
    fails_in: str = ""
    phase_status: str = ""
    """Of the phase that fails; default: the build's."""
    message: str = ""
    lines: tuple[str, ...] = ("Step 1/2 : FROM scratch",)
    exported: Mapping[str, str] = field(default_factory=dict)
    hangs: bool = False
    """In its last phase, until it is stopped."""
    at_end: Callable[[], None] = lambda: None


@dataclass
class Build:
    """A build that was started."""

    build_id: str
    request: dict[str, Any]
    script: Script
    looks: int = 0
    stopped: bool = False
    ended: bool = False

    @property
    def variables(self) -> dict[str, str]:
        return {one["name"]: one["value"] for one in self.request.get("environmentVariablesOverride", ())}

    def state(self) -> dict[str, Any]:
        """The next state, as BatchGetBuilds answers."""
        self.looks += 1
        names = PHASES if not self.script.fails_in else PHASES[: PHASES.index(self.script.fails_in) + 1]
        reached = min(self.looks * 4, len(names))
        over = self.stopped or (reached == len(names) and not self.script.hangs)
        phases: list[dict[str, Any]] = [
            {"phaseType": name, "phaseStatus": "SUCCEEDED", "durationInSeconds": 1}
            for name in names[:reached]
        ]
        if self.script.fails_in and reached == len(names):
            failed = self.script.phase_status or self.script.status
            phases[-1] |= {"phaseStatus": failed, "contexts": [{"message": self.script.message}]}
        if not over:
            phases.append({"phaseType": names[min(reached, len(names) - 1)]})
        status = "STOPPED" if self.stopped else self.script.status if over else "IN_PROGRESS"
        if over and not self.ended:
            self.ended = True
            self.script.at_end()
        exported = self.script.exported if over else {}
        return {
            "id": self.build_id,
            "buildStatus": status,
            "phases": phases,
            "logs": {"groupName": "/aws/codebuild/t", "streamName": self.build_id, "deepLink": "https://log"},
            "exportedEnvironmentVariables": [{"name": k, "value": v} for k, v in exported.items()],
        }


@cache
def _client(url: str, service: str, region: str) -> Any:
    """A client, whose making takes longer than most calls; it may be used by several threads."""
    keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
    return boto3.client(service, endpoint_url=url, region_name=region, **keys)


def refusal_of_start(request: Mapping[str, Any]) -> str:
    """Return why CodeBuild refuses to start a build; empty if it starts one.

    Types are checked against botocore's own model of the service.
    """
    import botocore.session

    model = botocore.session.get_session().get_service_model("codebuild")
    shapes = model.operation_model("StartBuild").input_shape.members
    wrong = [
        f"{name}={request[name]}"
        for name, shape in shapes.items()
        if name in request and (known := getattr(shape, "enum", None)) and request[name] not in known
    ]
    unnamed = [one for one in request.get("environmentVariablesOverride", ()) if not one["name"]]
    wrong += ["an environment variable without a name"] if unnamed else []
    wrong += ["idempotencyToken"] if len(request.get("idempotencyToken", "")) > _MOST_TOKEN else []
    return f"Invalid value for {', '.join(wrong)}" if wrong else ""


class ScriptedAws:
    """The server; tests set `scripts`, `refusals` and `scan`, and read `builds` and `registry`."""

    def __init__(self, moto: str) -> None:
        self.moto = moto
        self.scripts: list[Script] = []
        self.builds: list[Build] = []
        self.refusals: dict[str, list[tuple[str, str]]] = {}
        """An operation -> the errors (code, message) that its next calls get."""
        self.immutable = False
        """Whether the registry takes a tag only once, as ECR then does, even for the same image."""
        self.scan: dict[str, Any] = {"imageScanStatus": {"status": "COMPLETE"}, "imageScanFindings": {}}
        self.scanned: list[str] = []
        """The digests whose scan was read."""
        self.regions: dict[str, ScriptedAws] = {}
        """Servers for other regions: the signature of a call names its region."""
        self.registry: dict[str, bytes] = {}
        """Path -> blob or manifest."""
        self.types: dict[str, str] = {}
        self.calls: list[str] = []
        self._lock = threading.Lock()
        self.url = ""

    @property
    def host(self) -> str:
        return self.url.removeprefix("http://")

    @contextmanager
    def serving(self) -> Iterator["ScriptedAws"]:
        with serving(self._handler()) as self.url:
            yield self

    def client(self, service: str, region: str = REGION) -> Any:
        """Return a client of moto itself: a scripted build calls it while this server answers."""
        return _client(self.moto, service, region)

    def environment(self) -> dict[str, str]:
        """Return the environment in which a process uses this server as AWS."""
        keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
        place = {"AWS_REGION": REGION, "AWS_DEFAULT_REGION": REGION, "AWS_EC2_METADATA_DISABLED": "true"}
        return {"AWS_ENDPOINT_URL": self.url, **keys, **place}

    def missing_source(self, request: Mapping[str, Any]) -> str:
        """Return why a build could not load its source from moto's S3; empty if it can."""
        from botocore.exceptions import ClientError

        if request.get("sourceTypeOverride", "S3") != "S3":
            return ""
        # The project of infrastructure/cloudformation.yaml has a source that nobody uploads.
        bucket, _, key = request.get("sourceLocationOverride", "t-source/t/source/none.zip").partition("/")
        try:
            body = self.client("s3", "us-east-1").get_object(Bucket=bucket, Key=key)["Body"].read()
        except ClientError as error:
            return f"{error.response['Error']['Code']}: no object {bucket}/{key}"
        names = zipfile.ZipFile(BytesIO(body)).namelist()
        return "" if "buildspec.yml" in names else "YAML_FILE_ERROR Message: stat buildspec.yml: no such file"

    def tags(self, repository: str) -> dict[str, str]:
        """Tag -> digest, of the registry."""
        prefix = f"/v2/{repository}/manifests/"
        found = {path.removeprefix(prefix): body for path, body in self.registry.items() if prefix in path}
        named = {tag: f"sha256:{hashlib.sha256(body).hexdigest()}" for tag, body in found.items()}
        return {tag: digest for tag, digest in named.items() if not tag.startswith("sha256:")}

    def answer(self, operation: str, request: dict[str, Any]) -> tuple[int, Any] | None:
        """Return the scripted answer to an operation; None for moto's answer."""
        with self._lock:
            self.calls.append(operation)
            if self.refusals.get(operation):
                code, message = self.refusals[operation].pop(0)
                return 400, {"__type": code, "message": message}
            if operation == "StartBuild":
                if refused := refusal_of_start(request):
                    return 400, {"__type": "InvalidInputException", "message": refused}
                script = self.scripts.pop(0)
                if lacks := self.missing_source(request):
                    script = Script("FAILED", "DOWNLOAD_SOURCE", message=lacks)
                build = Build(f"t:{len(self.builds) + 1}", request, script)
                self.builds.append(build)
                return 200, {"build": {"id": build.build_id}}
            if operation == "BatchGetBuilds":
                found = [b for b in self.builds if b.build_id in request["ids"]]
                return 200, {"builds": [build.state() for build in found]}
            if operation == "StopBuild":
                build = next(b for b in self.builds if b.build_id == request["id"])
                build.stopped = True
                return 200, {"build": {"id": build.build_id}}
            if operation == "GetLogEvents":
                build = next(b for b in self.builds if b.build_id == request["logStreamName"])
                lines = build.script.lines[-request["limit"] :]
                return 200, {"events": [{"timestamp": 0, "message": f"{line}\n"} for line in lines]}
            if operation == "GetAuthorizationToken":
                token = base64.b64encode(b"AWS:password").decode()
                data = {"authorizationToken": token, "proxyEndpoint": self.url, "expiresAt": 0}
                return 200, {"authorizationData": [data]}
            if operation == "DescribeImageScanFindings":
                self.scanned.append(request["imageId"]["imageDigest"])
                return 200, self.scan
            return None

    def refusal_in_xml(self, method: str, path: str, body: bytes) -> tuple[int, bytes] | None:
        """Return the scripted error of a call of S3 or of a service that names the operation in a form."""
        form = urllib.parse.parse_qs(body.decode(errors="replace")) if method == "POST" else {}
        place, _, query = path.strip("/").partition("?")
        about = next((f"?{name}" for name in _SETTINGS if name in query.split("&")[0].split("=")[0]), "")
        named = f"{method.capitalize()}{'Object' if '/' in place.strip('/') else 'Bucket'}{about}"
        operation = form.get("Action", [named])[0]
        with self._lock:
            self.calls.append(operation)
            if not self.refusals.get(operation):
                return None
            code, message = self.refusals[operation].pop(0)
        said = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>"
        if "Action" in form:
            return 403, f"<ErrorResponse>{said}</ErrorResponse>".encode()
        return _STATUS.get(code, 400), said.encode()

    def distribution(
        self, method: str, path: str, body: bytes, kind: str
    ) -> tuple[int, dict[str, str], bytes]:
        """The registry."""
        plain, _, query = path.partition("?")
        with self._lock:
            if method == "POST":
                return 202, {"Location": f"{plain}1"}, b""
            if method == "PUT" and "/uploads/" in plain:
                name = plain.partition("/blobs/")[0]
                self.registry[f"{name}/blobs/{urllib.parse.parse_qs(query)['digest'][0]}"] = body
                return 201, {}, b""
            digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
            if method == "PUT":
                tag = plain.rpartition("/")[2]
                if self.immutable and plain in self.registry and not tag.startswith("sha256:"):
                    said = {"code": "TAG_INVALID", "message": f"The image tag '{tag}' already exists"}
                    return 400, {}, json.dumps({"errors": [said]}).encode()
                for key in (plain, f"{plain.rpartition('/')[0]}/{digest}"):
                    self.registry[key], self.types[key] = body, kind
                has_subject = (
                    self.immutable and b'"subject"' in body
                )  # ECR keeps the list of referrers itself
                said = {"OCI-Subject": "x"} if has_subject else {}
                return 201, {"Docker-Content-Digest": digest} | said, b""
            found = self.registry.get(plain)
            if found is None:
                return 404, {}, b"{}"
            return 200, {"Content-Type": self.types.get(plain, "application/octet-stream")}, found

    def _handler(self) -> type[QuietHandler]:
        here = self

        class Handler(QuietHandler):
            def serve(self) -> None:
                body = self._body()
                scope = re.search(r"Credential=[^/]+/\d+/([^/]+)/", self.headers.get("Authorization", ""))
                aws = here.regions.get(scope[1], here) if scope else here
                operation = self.headers.get("X-Amz-Target", "").rpartition(".")[2]
                if self.path.startswith("/v2/"):
                    kind = self.headers.get("Content-Type", "")
                    status, headers, content = aws.distribution(self.command, self.path, body, kind)
                    self.send_whole(status, content, headers)
                    return
                told = aws.answer(operation, json.loads(body or b"{}")) if operation else None
                refused = None if operation else aws.refusal_in_xml(self.command, self.path, body)
                if refused is not None:
                    self.send_whole(*refused, {"Content-Type": "application/xml"})
                elif told is None:
                    status, headers, content = aws.forward(self.command, self.path, dict(self.headers), body)
                    self.send_whole(status, content, headers)
                else:
                    headers = {"Content-Type": "application/x-amz-json-1.1"}
                    self.send_whole(told[0], json.dumps(told[1]).encode(), headers)

            def _body(self) -> bytes:
                if self.headers.get("Expect", "").lower() == "100-continue":
                    self.send_response_only(100)
                    self.end_headers()
                if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
                    return self.rfile.read(int(self.headers.get("Content-Length") or 0))
                found = b""
                while size := int(self.rfile.readline().strip() or b"0", 16):
                    found += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
                return found

        return Handler

    def forward(
        self, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        kept = {k: v for k, v in headers.items() if k.lower() not in _HOPS}
        if not any(name.lower() == "content-type" for name in kept):
            kept["Content-Type"] = "application/octet-stream"  # else urllib declares a form
        request = urllib.request.Request(f"{self.moto}{path}", data=body or None, headers=kept, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, {k: v for k, v in answer.headers.items() if k in _KEPT}, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, {k: v for k, v in error.headers.items() if k in _KEPT}, error.read()
