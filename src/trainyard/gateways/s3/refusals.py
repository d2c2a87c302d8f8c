"""Explain errors of S3 and the network to the person who can fix them: the cause, the name, what to do.

Pure: errors in, text out. The text never contains a secret, nor the access key.
"""

import re
from typing import Any

_PERMISSIONS = {
    "list_objects_v2": "ListBucket",
    "head_object": "GetObject",
    "create_multipart_upload": "PutObject",
    "upload_part": "PutObject",
    "complete_multipart_upload": "PutObject",
}
DENIED = ("AccessDenied", "403", "AllAccessDisabled", "Forbidden")
"""The store responds, but the role lacks the permission."""
UNSUPPORTED = (
    *("NotImplemented", "501", "MethodNotAllowed", "405", "MissingContentLength", "411"),
    *("InvalidArgument", "InvalidRequest", "BadRequest", "MalformedXML", "UnsupportedOperation"),
    *("XAmzContentSHA256Mismatch", "XAmzContentChecksumMismatch", "InvalidDigest", "NotSupported"),
    *("InvalidEncryptionAlgorithmError", "HeaderNotSupported", "EntityTooSmall", "EntityTooLarge"),
)
"""The store does not know this operation, or not with these arguments: no later attempt succeeds."""
_CREDENTIALS = {
    "InvalidAccessKeyId": "the access key does not exist there",
    "SignatureDoesNotMatch": "the secret key does not belong to the access key",
    "ExpiredToken": "the session has expired; sign in or assume the role again",
    "InvalidToken": "the session token is not valid",
    "TokenRefreshRequired": "the session has expired; sign in or assume the role again",
}
_SET_REGION = "Set AWS_DEFAULT_REGION to it (in a workflow with TRAINYARD_AWS_ROLE: TRAINYARD_AWS_REGION)."
_REGION = ("PermanentRedirect", "301", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException")


def explain_refusal(error: Exception, *, bucket: str, operation: str, endpoint: str) -> str:
    """Return why `operation` on `bucket` failed, and what to do."""
    response = getattr(error, "response", None)
    if not isinstance(response, dict):
        return _explain_connection(error, bucket, endpoint)
    request = response.get("ResponseMetadata", {}).get("RequestId")
    words = _explain_refusal(response, bucket=bucket, operation=operation, endpoint=endpoint)
    return f"{words} (Request {request}.)" if request else words


def _explain_refusal(response: dict[str, Any], *, bucket: str, operation: str, endpoint: str) -> str:
    refused = response.get("Error", {})
    code, message = str(refused.get("Code", "")), str(refused.get("Message", "")).strip()
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    called = "".join(word.capitalize() for word in operation.split("_"))
    action = _PERMISSIONS.get(operation, called)
    if code == "NoSuchBucket":
        return f"The bucket {bucket} does not exist at {endpoint} ({code}). Create it or correct the URL."
    if code in _CREDENTIALS:
        return f"{endpoint} refuses the AWS credentials: {_CREDENTIALS[code]} ({code})."
    if code in DENIED:
        return _explain_denied(bucket, action, message)
    if code == "RequestTimeTooSkewed":
        return f"This machine's clock differs too much from {endpoint}'s ({code}). Set it (chrony, NTP)."
    if code in _REGION:
        return f"The bucket {bucket} is in another region ({code}: {message}). {_SET_REGION}"
    if code == "BadDigest":
        return (
            f"{endpoint} received other bytes than were sent, each time ({action}, {code}); none are stored."
        )
    reason = f"{code or status} {message}".rstrip(". ")
    if code in UNSUPPORTED or status in (405, 411, 501):
        return (
            f"{endpoint} cannot do {called}: {reason}. Trying again does not help: use another store, or a "
            "version of this one that can."
        )
    if code == "400":  # a HEAD request: its response has no body that could name the cause
        return (
            f"{endpoint} refuses {called}: {reason}. Perhaps the session has expired; sign in or assume "
            "the role again."
        )
    if status >= 500 or code == "SlowDown":
        return f"{endpoint} cannot serve {called} now: {reason}. Try again later."
    return f"The bucket {bucket} refuses {called}: {reason}."


def _explain_denied(bucket: str, action: str, message: str) -> str:
    who = re.search(r"arn:[\w:/+=,.@-]+", message)
    resource = f"arn:aws:s3:::{bucket}" + ("" if action == "ListBucket" else "/*")
    hint = " Without s3:ListBucket, S3 answers this for missing objects too." if action == "GetObject" else ""
    return (
        f"The bucket {bucket} answers, but refuses {action}{f' for {who[0]}' if who else ''} (AccessDenied). "
        f"The missing permission is s3:{action} on {resource}.{hint} "
        "The complete policy is in docs/runbooks/permissions.md#artifacts."
    )


def _explain_connection(error: Exception, bucket: str, endpoint: str) -> str:
    kind = type(error).__name__
    if kind in ("NoCredentialsError", "PartialCredentialsError"):
        return (
            f"There are no AWS credentials for s3://{bucket}. "
            "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or give the machine a role."
        )
    if kind.endswith(("RetrievalError", "SSOTokenLoadError", "SSOTokenError")):
        return f"The AWS credentials for s3://{bucket} could not be obtained: {error}"
    if kind == "ParamValidationError":
        return f"The request to S3 is not valid: {error}"
    return f"No usable answer from {endpoint} ({kind}: {error})."
