"""CloudFormation for one account in memory, by the documented rules that moto lacks.

Names that are taken, imports, deletion policies, roll-backs, drift, early validation, states of a stack.
Every request is checked against botocore's model of the API. Rules:
https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/import-resources-automatically.html
https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/drift-aware-change-sets.html
"""

import itertools
import json
from functools import cache
from typing import Any

import yaml
from botocore import xform_name
from botocore.session import get_session
from botocore.validate import ParamValidator
from tests.unit.infrastructure.template_reader import ResolvedTemplate

from trainyard.errors import ServiceError
from trainyard.image.building.stack_template import IDENTIFIERS

STACK = "arn:aws:cloudformation:us-west-2:123456789012:stack/trainyard/1"
NAMED_BY = {
    **{kind: keys[0] for kind, keys in IDENTIFIERS.items()},
    "AWS::CodeBuild::Project": "Name",
    "AWS::IAM::OIDCProvider": "Url",
}
READS = ("get_", "list_", "describe_", "batch_get_")


@cache
def model(service: str) -> tuple[Any, dict[str, str]]:
    found = get_session().get_service_model(service)
    return found, {xform_name(name): name for name in found.operation_names}


class ScriptedCloudFormation:
    """`AwsAccount.call`, for an account whose `taken` resources exist."""

    def __init__(self) -> None:
        self.taken: dict[str, set[str]] = {}
        """Type -> the names that exist in the account, in the stack or outside."""
        self.status = ""
        """The stack's status; empty if there is no stack."""
        self.parameters: dict[str, str] = {}
        self.body = ""
        self.resources: dict[str, tuple[str, str, str, str]] = {}
        """Logical name -> type, name in AWS, status, reason."""
        self.drifted: set[str] = set()
        self.refuses: dict[str, str] = {}
        """Logical name -> why it cannot be made, changed or removed."""
        self.validates_early = False
        """Whether a name that is taken is found when the change set is made, not when it is executed."""
        self.change_sets: dict[str, dict[str, Any]] = {}
        self.shown: list[dict[str, Any]] = []
        self.coming: list[dict[str, Any]] = []
        """Events that the next polls show, two each."""
        self.calls: list[str] = []
        self._numbers = itertools.count()

    def __call__(self, service: str, operation: str, *, absent: tuple[str, ...] = (), **given: Any) -> Any:
        found, names = model(service)
        report = ParamValidator().validate(given, found.operation_model(names[operation]).input_shape)
        assert not report.has_errors(), report.generate_report()
        self.calls.append(operation)
        return getattr(self, operation)(given)

    # The account outside of CloudFormation

    def get_open_id_connect_provider(self, _given: dict[str, Any]) -> Any:
        return {"ClientIDList": []} if self.taken.get("AWS::IAM::OIDCProvider") else None

    # The stack

    def describe_stacks(self, _given: dict[str, Any]) -> Any:
        parameters = [
            {"ParameterKey": key, "ParameterValue": value} for key, value in self.parameters.items()
        ]
        stack = {"StackId": STACK, "StackStatus": self.status, "Parameters": parameters}
        return {"Stacks": [stack]} if self.status else None

    def list_stack_resources(self, _given: dict[str, Any]) -> Any:
        keys = ("ResourceType", "PhysicalResourceId", "ResourceStatus", "ResourceStatusReason")
        listed = [
            {"LogicalResourceId": name, **dict(zip(keys, each, strict=True))}
            for name, each in self.resources.items()
        ]
        return {"StackResourceSummaries": listed}

    def get_template(self, _given: dict[str, Any]) -> Any:
        return {"TemplateBody": json.loads(self.body) if self.body.startswith("{") else self.body}

    def describe_stack_events(self, _given: dict[str, Any]) -> Any:
        for _ in range(min(2, len(self.coming))):
            self.shown.append(self.coming.pop(0))
        return {"StackEvents": self.shown[::-1]}

    def _happens(self, name: str, kind: str, physical: str, status: str, reason: str = "") -> None:
        event = {"EventId": str(next(self._numbers)), "StackId": STACK, "LogicalResourceId": name}
        event |= {"ResourceType": kind, "PhysicalResourceId": physical, "ResourceStatus": status}
        self.coming.append({**event, "ResourceStatusReason": reason})

    def _stack_is(self, status: str, reason: str = "") -> None:
        self.status = status
        self._happens("trainyard", "AWS::CloudFormation::Stack", STACK, status, reason)

    # Change sets

    def create_change_set(self, given: dict[str, Any]) -> Any:
        new = given["ChangeSetType"] == "CREATE"
        if new is not (self.status in ("", "REVIEW_IN_PROGRESS")):
            raise ServiceError(
                f"ValidationError: Stack is in {self.status or 'no'} state and can not be changed"
            )
        assert given["Capabilities"] == ["CAPABILITY_NAMED_IAM"]
        if new:
            self.status = "REVIEW_IN_PROGRESS"
        arn = f"{STACK}/{given['ChangeSetName']}"
        values = {each["ParameterKey"]: each["ParameterValue"] for each in given["Parameters"]}
        body = given["TemplateBody"]
        wanted = resolved(body, values)
        change_set = {"body": body, "values": values, "wanted": wanted, "new": new, "polls": 1}
        change_set |= self._planned(wanted, parsed(body), given)
        self.change_sets[arn] = change_set
        return {"Id": arn, "StackId": STACK}

    def _planned(
        self, wanted: dict[str, tuple[str, dict[str, Any]]], body: dict[str, Any], given: dict[str, Any]
    ) -> dict[str, Any]:
        changes: list[dict[str, Any]] = []
        errors, not_retained = [], []
        before = {} if given["ChangeSetType"] == "CREATE" else resolved(self.body, self.parameters)
        policies = {} if not before else parsed(self.body)["Resources"]
        for name, (kind, properties) in wanted.items():
            change = {"LogicalResourceId": name, "ResourceType": kind}
            physical, raw = properties[NAMED_BY[kind]], body["Resources"][name]
            if name not in before:
                exists = physical in self.taken.get(kind, set())
                static = all(
                    isinstance(raw["Properties"][key], str) for key in IDENTIFIERS.get(kind, ("",)) if key
                )
                importable = (
                    exists and kind in IDENTIFIERS and static and given.get("ImportExistingResources")
                )
                if importable and not str(raw.get("DeletionPolicy")).startswith("Retain"):
                    not_retained.append(name)
                elif exists and not importable and self.validates_early:
                    errors.append((name, kind, physical))
                changes.append(change | {"Action": "Import" if importable else "Add"})
            elif name in self.drifted and given.get("DeploymentMode") == "REVERT_DRIFT":
                target = {"Attribute": "Properties", "Path": "/Properties/Changed", "Name": "Changed"}
                target |= {"BeforeValue": "theirs", "AfterValue": "ours"}
                changes.append(change | {"Action": "Modify", "Details": [{"Target": target}]})
            elif before[name] != wanted[name]:
                changes.append(change | {"Action": "Modify", "Replacement": "False"})
            elif policies[name].get("DeletionPolicy") != raw.get("DeletionPolicy"):
                changes.append(change | {"Action": "Modify", "Scope": ["DeletionPolicy"]})
        for name in before.keys() - wanted.keys():
            retained = str(policies[name].get("DeletionPolicy")).startswith("Retain")
            action = "Retain" if retained else "Delete"
            kind = policies[name]["Type"]
            changes.append(
                {"LogicalResourceId": name, "ResourceType": kind, "Action": "Remove", "PolicyAction": action}
            )
        status, reason = "CREATE_COMPLETE", ""
        if not_retained:
            status, reason = "FAILED", f"The resources must have the DeletionPolicy 'Retain': {not_retained}"
        elif errors:
            status, reason = "FAILED", "[AWS::EarlyValidation::ResourceExistenceCheck]: use DescribeEvents"
        elif not changes:
            status = "FAILED"
            reason = "The submitted information didn't contain changes. Submit different information."
        return {"changes": changes, "status": status, "reason": reason, "errors": errors}

    def describe_change_set(self, given: dict[str, Any]) -> Any:
        change_set = self.change_sets[given["ChangeSetName"]]
        if change_set["polls"]:
            change_set["polls"] -= 1
            return {"Status": "CREATE_IN_PROGRESS"}
        listed = [{"Type": "Resource", "ResourceChange": each} for each in change_set["changes"]]
        start = int(given.get("NextToken", 0))  # pages of five
        more = {"NextToken": str(start + 5)} if len(listed) > start + 5 else {}
        status, reason = change_set["status"], change_set["reason"]
        return {"Status": status, "StatusReason": reason, "Changes": listed[start : start + 5], **more}

    def describe_events(self, given: dict[str, Any]) -> Any:
        keys = ("LogicalResourceId", "ResourceType", "PhysicalResourceId")
        listed = [
            {**dict(zip(keys, each, strict=True)), "ValidationStatusReason": f"{each[2]} already exists"}
            for each in self.change_sets[given["ChangeSetName"]]["errors"]
        ]
        return {"OperationEvents": listed}

    def delete_change_set(self, given: dict[str, Any]) -> Any:
        del self.change_sets[given["ChangeSetName"]]

    def execute_change_set(self, given: dict[str, Any]) -> Any:
        change_set = self.change_sets.pop(given["ChangeSetName"])
        self.change_sets.clear()
        word = "CREATE" if change_set["new"] else "UPDATE"
        old = (self.body, self.parameters, dict(self.resources))
        if change_set["new"]:
            self.body = change_set["body"]
        self._stack_is(f"{word}_IN_PROGRESS")
        made: list[str] = []
        for change in change_set["changes"]:
            name, kind = change["LogicalResourceId"], change["ResourceType"]
            wanted = change_set["wanted"].get(name)
            physical = wanted[1][NAMED_BY[kind]] if wanted else self.resources[name][1]
            reason = self.refuses.get(name, "")
            if change["Action"] == "Add" and physical in self.taken.get(kind, set()):
                reason = reason or f"{physical} already exists"
            if reason:
                self._happens(name, kind, physical, f"{word}_FAILED", reason)
                other = "BuildRole"
                self._happens(other, "AWS::IAM::Role", "", f"{word}_FAILED", "Resource creation cancelled")
                self._roll_back(word, made, old)
                return
            self._carry_out(change, kind, physical)
            if change["Action"] == "Add":
                made.append(name)
        self.body, self.parameters = change_set["body"], change_set["values"]
        self._stack_is(f"{word}_COMPLETE")

    def _carry_out(self, change: dict[str, Any], kind: str, physical: str) -> None:
        name = change["LogicalResourceId"]
        if change["Action"] == "Remove":
            del self.resources[name]
            if change["PolicyAction"] != "Retain":
                self.taken[kind].discard(physical)
            return
        self.taken.setdefault(kind, set()).add(physical)
        self.resources[name] = (kind, physical, "CREATE_COMPLETE", "")
        self.drifted.discard(name)
        if change["Action"] == "Import":  # it keeps the settings that it had
            self.drifted.add(name)
        self._happens(name, kind, physical, "CREATE_COMPLETE")

    def _roll_back(self, word: str, made: list[str], old: tuple[str, dict[str, str], Any]) -> None:
        """RetainExceptOnCreate: resources that this operation created are deleted, imported ones stay."""
        self._stack_is("ROLLBACK_IN_PROGRESS" if word == "CREATE" else "UPDATE_ROLLBACK_IN_PROGRESS")
        for name in made:
            kind, physical, *_ = self.resources[name]
            self.taken[kind].discard(physical)
        if word == "UPDATE":
            self.body, self.parameters, self.resources = old
        else:
            self.resources = {"ImageRepository": ("AWS::ECR::Repository", "trainyard", "DELETE_COMPLETE", "")}
        self._stack_is("ROLLBACK_COMPLETE" if word == "CREATE" else "UPDATE_ROLLBACK_COMPLETE")

    def delete_stack(self, _given: dict[str, Any]) -> Any:
        self._stack_is("DELETE_IN_PROGRESS")
        policies = parsed(self.body)["Resources"] if self.body else {}
        for name, (kind, physical, *_) in list(self.resources.items()):
            if reason := self.refuses.get(name):
                self.resources[name] = (kind, physical, "DELETE_FAILED", reason)
                self._happens(name, kind, physical, "DELETE_FAILED", reason)
                self._stack_is("DELETE_FAILED", f"The following resource(s) failed to delete: [{name}].")
                return
            del self.resources[name]
            if not str(policies.get(name, {}).get("DeletionPolicy")).startswith("Retain"):
                self.taken.get(kind, set()).discard(physical)
        self._stack_is("DELETE_COMPLETE")
        self.status, self.body, self.parameters = "", "", {}

    def snapshot(self) -> Any:
        """Return everything that a dry run must leave as it is."""
        taken = {kind: sorted(names) for kind, names in self.taken.items() if names}
        return json.dumps([taken, self.status, self.body, self.parameters, self.resources])


@cache
def parsed(body: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(body)
    return found


def resolved(body: str, values: dict[str, str]) -> dict[str, tuple[str, dict[str, Any]]]:
    return ResolvedTemplate(values, parsed(body)).resources()
