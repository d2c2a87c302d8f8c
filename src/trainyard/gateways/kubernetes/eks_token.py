"""Make tokens for EKS: a signed address of STS's GetCallerIdentity, without the aws CLI.

EKS opens this address, and STS answers who signed it. So the token proves our identity and holds no secret
key. It is signed for 60 seconds, and EKS accepts it for 15 minutes
(github.com/kubernetes-sigs/aws-iam-authenticator).
"""

import base64
from typing import Any

from trainyard.errors import ConfigError, PermissionRefusedError
from trainyard.gateways.aws_session import boto3_session

_PREFIX = "k8s-aws-v1."
_HEADER = "x-k8s-aws-id"
_SIGNED_SECONDS = 60


def eks_token(cluster: str, *, region: str = "") -> str:
    """Return a token for `cluster`, with the AWS credentials of this process.

    Raises ConfigError if the AWS settings cannot be used, PermissionRefusedError without credentials.
    """
    from botocore.exceptions import BotoCoreError, NoCredentialsError

    try:
        url = _presigned_url(boto3_session(region=region), cluster)
        return _PREFIX + base64.urlsafe_b64encode(url.encode()).rstrip(b"=").decode()
    except NoCredentialsError:
        raise PermissionRefusedError(
            f"There are no AWS credentials to sign a token for the EKS cluster {cluster} with; set "
            "AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        ) from None
    except (BotoCoreError, ValueError) as error:
        raise ConfigError(f"The AWS settings cannot be used: {error}") from None


def _presigned_url(session: Any, cluster: str) -> str:
    from botocore.config import Config

    client = session.client("sts", config=Config(signature_version="v4", connect_timeout=5, read_timeout=10))
    identify = "sts.GetCallerIdentity"

    def keep(params: dict[str, Any], context: dict[str, Any], **_: object) -> None:
        context[_HEADER] = params.pop("ClusterName")

    def add_header(request: Any, **_: object) -> None:
        request.headers[_HEADER] = request.context[_HEADER]

    client.meta.events.register(f"provide-client-params.{identify}", keep)
    client.meta.events.register(f"before-sign.{identify}", add_header)
    return str(
        client.generate_presigned_url(
            "get_caller_identity",
            Params={"ClusterName": cluster},
            ExpiresIn=_SIGNED_SECONDS,
            HttpMethod="GET",
        )
    )
