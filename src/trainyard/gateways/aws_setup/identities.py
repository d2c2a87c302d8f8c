"""IAM roles with their inline policy, GitHub's OIDC provider, and the access entry of an EKS cluster."""

import json
from collections.abc import Collection
from typing import Any

from trainyard.gateways.aws_setup.account import Call
from trainyard.gateways.aws_setup.builds import OURS

_NO_ENTITY = ("NoSuchEntity", "NoSuchEntityException")


class IamRole:
    """`AWS::IAM::Role`."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def wanted(self, p: dict[str, Any]) -> dict[str, Any]:
        return {
            "trust": p["AssumeRolePolicyDocument"],
            "policy": p["Policies"][0]["PolicyDocument"],
            "maxSessionDuration": p.get("MaxSessionDuration", 3600),
        }

    def found(self, p: dict[str, Any]) -> dict[str, Any] | None:
        answer = self._call("iam", "get_role", absent=_NO_ENTITY, RoleName=p["RoleName"])
        if answer is None:
            return None
        names = {"RoleName": p["RoleName"], "PolicyName": p["Policies"][0]["PolicyName"]}
        inline = self._call("iam", "get_role_policy", absent=_NO_ENTITY, **names)
        return {
            "trust": _document(answer["Role"]["AssumeRolePolicyDocument"]),
            "policy": _document(inline["PolicyDocument"]) if inline else {},
            "maxSessionDuration": answer["Role"].get("MaxSessionDuration", 3600),
        }

    def create(self, p: dict[str, Any]) -> None:
        self._call(
            "iam",
            "create_role",
            RoleName=p["RoleName"],
            Description=p["Description"],
            AssumeRolePolicyDocument=json.dumps(p["AssumeRolePolicyDocument"]),
            MaxSessionDuration=p.get("MaxSessionDuration", 3600),
        )
        self.change(p, {"policy"})

    def change(self, p: dict[str, Any], keys: Collection[str]) -> None:
        name = p["RoleName"]
        if "trust" in keys:
            trust = json.dumps(p["AssumeRolePolicyDocument"])
            self._call("iam", "update_assume_role_policy", RoleName=name, PolicyDocument=trust)
        if "policy" in keys:
            policy, text = p["Policies"][0]["PolicyName"], json.dumps(p["Policies"][0]["PolicyDocument"])
            self._call("iam", "put_role_policy", RoleName=name, PolicyName=policy, PolicyDocument=text)
        if "maxSessionDuration" in keys:
            seconds = p.get("MaxSessionDuration", 3600)
            self._call("iam", "update_role", RoleName=name, MaxSessionDuration=seconds)

    def stays(self, p: dict[str, Any]) -> str:
        """AWS removes no role that has other policies; its own must not be gone by then."""
        name = p["RoleName"]
        has = str(self._call("iam", "get_role", RoleName=name)["Role"].get("Description") or "")
        if not has.startswith(OURS):
            return f"it is not of this set-up: it is described as {has[:80]!r}"
        attached = self._call("iam", "list_attached_role_policies", RoleName=name)["AttachedPolicies"]
        inline = self._call("iam", "list_role_policies", RoleName=name)["PolicyNames"]
        own = p["Policies"][0]["PolicyName"]
        others = [each["PolicyName"] for each in attached] + [each for each in inline if each != own]
        return f"others added policies to it: {', '.join(others)}; remove them first" if others else ""

    def remove(self, p: dict[str, Any]) -> None:
        name, policy = p["RoleName"], p["Policies"][0]["PolicyName"]
        self._call("iam", "delete_role_policy", absent=_NO_ENTITY, RoleName=name, PolicyName=policy)
        self._call("iam", "delete_role", RoleName=name)


def _document(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


class OidcProvider:
    """`AWS::IAM::OIDCProvider`. An account has one per address, and other roles may need it."""

    def __init__(self, call: Call, *, partition: str, account: str) -> None:
        self._call, self._place = call, f"arn:{partition}:iam::{account}:oidc-provider"

    def _arn(self, p: dict[str, Any]) -> str:
        return f"{self._place}/{p['Url'].removeprefix('https://')}"

    def wanted(self, p: dict[str, Any]) -> dict[str, Any]:
        return {"clients": dict.fromkeys(p["ClientIdList"], True)}

    def found(self, p: dict[str, Any]) -> dict[str, Any] | None:
        arn = self._arn(p)
        operation = "get_open_id_connect_provider"
        answer = self._call("iam", operation, absent=_NO_ENTITY, OpenIDConnectProviderArn=arn)
        return None if answer is None else {"clients": dict.fromkeys(answer.get("ClientIDList", []), True)}

    def create(self, p: dict[str, Any]) -> None:
        # AWS checks GitHub's certificate by its own list of authorities; a thumbprint is not needed any more.
        self._call("iam", "create_open_id_connect_provider", Url=p["Url"], ClientIDList=p["ClientIdList"])

    def change(self, p: dict[str, Any], keys: Collection[str]) -> None:
        assert "clients" in keys
        operation, arn = "add_client_id_to_open_id_connect_provider", self._arn(p)
        for client in p["ClientIdList"]:
            self._call("iam", operation, OpenIDConnectProviderArn=arn, ClientID=client)

    def stays(self, p: dict[str, Any]) -> str:
        arn = self._arn(p)
        return (
            "other roles of the account may need it; "
            f"aws iam delete-open-id-connect-provider --open-id-connect-provider-arn {arn} removes it"
        )

    def remove(self, p: dict[str, Any]) -> None:
        raise AssertionError(f"{p['Url']}: a provider always stays")


class AccessEntry:
    """`AWS::EKS::AccessEntry`."""

    _ABSENT = ("ResourceNotFoundException",)

    def __init__(self, call: Call) -> None:
        self._call = call

    def wanted(self, p: dict[str, Any]) -> dict[str, Any]:
        return {"kubernetesGroups": p["KubernetesGroups"]}

    def found(self, p: dict[str, Any]) -> dict[str, Any] | None:
        answer = self._call("eks", "describe_access_entry", absent=self._ABSENT, **self._names(p))
        return None if answer is None else {"kubernetesGroups": answer["accessEntry"]["kubernetesGroups"]}

    def create(self, p: dict[str, Any]) -> None:
        groups = p["KubernetesGroups"]
        self._call("eks", "create_access_entry", **self._names(p), kubernetesGroups=groups, type=p["Type"])

    def change(self, p: dict[str, Any], keys: Collection[str]) -> None:
        assert "kubernetesGroups" in keys
        groups = p["KubernetesGroups"]
        self._call("eks", "update_access_entry", **self._names(p), kubernetesGroups=groups)

    def _names(self, p: dict[str, Any]) -> dict[str, str]:
        return {"clusterName": p["ClusterName"], "principalArn": p["PrincipalArn"]}

    def stays(self, p: dict[str, Any]) -> str:  # noqa: ARG002 - every kind takes the properties
        return ""

    def remove(self, p: dict[str, Any]) -> None:
        self._call("eks", "delete_access_entry", **self._names(p))
