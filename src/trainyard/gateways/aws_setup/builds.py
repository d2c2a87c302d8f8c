"""The CodeBuild project and its webhook."""

import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from trainyard.errors import ServiceError
from trainyard.gateways.aws_setup.account import Call

_ROLE_ATTEMPTS, _ROLE_PAUSE_SECONDS = 8, 4.0
"""For some seconds, AWS does not know a new role everywhere."""
OURS = "Trainyard:"
"""Descriptions of this set-up begin with it. What has its name and another description was made by others."""


class BuildProject:
    """`AWS::CodeBuild::Project`."""

    def __init__(self, call: Call, *, pause: Callable[[float], None] = time.sleep) -> None:
        self._call, self._pause = call, pause

    def wanted(self, p: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = _api({key: value for key, value in p.items() if key != "Triggers"})
        found["webhook"] = "none"
        if "Triggers" in p:
            found["webhook"] = {"filterGroups": _api(p["Triggers"]["FilterGroups"])}
        return found

    def found(self, p: dict[str, Any]) -> dict[str, Any] | None:
        projects = self._call("codebuild", "batch_get_projects", names=[p["Name"]])["projects"]
        if not projects:
            return None
        found = dict(projects[0])
        if webhook := found.get("webhook"):
            groups = webhook.get("filterGroups", [])
            plain = [[{key: each[key] for key in ("type", "pattern")} for each in group] for group in groups]
            found["webhook"] = {"filterGroups": plain}
        return {"webhook": "none"} | found

    def create(self, p: dict[str, Any]) -> None:
        self._patiently("create_project", p)
        if "Triggers" in p:
            self._webhook("create_webhook", p)

    def change(self, p: dict[str, Any], keys: Collection[str]) -> None:
        if set(keys) - {"webhook"}:
            self._patiently("update_project", p)
        if "webhook" not in keys:
            return
        if "Triggers" not in p:  # the webhook of an earlier set-up would build a project without a source
            self._call("codebuild", "delete_webhook", projectName=p["Name"])
            return
        has = (self.found(p) or {}).get("webhook", "none") != "none"
        self._webhook("update_webhook" if has else "create_webhook", p)

    def stays(self, p: dict[str, Any]) -> str:
        has = str((self.found(p) or {}).get("description", ""))
        return "" if has.startswith(OURS) else f"it is not of this set-up: it is described as {has[:80]!r}"

    def remove(self, p: dict[str, Any]) -> None:
        self._call("codebuild", "delete_project", name=p["Name"])

    def _webhook(self, operation: str, p: dict[str, Any]) -> None:
        groups = _api(p["Triggers"]["FilterGroups"])
        try:
            self._call("codebuild", operation, projectName=p["Name"], filterGroups=groups)
        except ServiceError as error:
            raise ServiceError(
                f"{error}\nCodeBuild must be connected to GitHub first: in its console, Manage default "
                "source credential. Then run this again."
            ) from None

    def _patiently(self, operation: str, p: dict[str, Any]) -> None:
        wanted = {key: value for key, value in self.wanted(p).items() if key != "webhook"}
        for attempt in range(1, _ROLE_ATTEMPTS + 1):
            try:
                self._call("codebuild", operation, **wanted)
                return
            except ServiceError as error:
                if "sts:AssumeRole" not in str(error) or attempt == _ROLE_ATTEMPTS:
                    raise
            self._pause(_ROLE_PAUSE_SECONDS)


def _api(value: Any) -> Any:
    """Convert CloudFormation's names to the API's: `TimeoutInMinutes` to `timeoutInMinutes`."""
    if isinstance(value, Mapping):
        return {_word(key): _api(inner) for key, inner in value.items()}
    return [_api(inner) for inner in value] if isinstance(value, list) else value


def _word(key: str) -> str:
    return "buildspec" if key == "BuildSpec" else key[0].lower() + key[1:]
