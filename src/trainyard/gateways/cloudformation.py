"""One CloudFormation stack: plan a change set, execute it or discard it, delete the stack.

    template, parameters  ──plan──>  changes  ──execute──>  settled, or ServiceError with the reasons

Every call and every wait has a time limit. The caller decides which changes are wanted.
"""

import logging
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from trainyard.errors import ServiceError, WaitTimeoutError
from trainyard.gateways.aws_refusals import AwsAccount

_logger = logging.getLogger("trainyard.cloudformation")
_SECONDS, _PAUSE_SECONDS = 1800.0, 3.0
_NOTHING_TO_CHANGE = ("submitted information didn't contain changes", "No updates are to be performed")
_GOOD = ("CREATE_COMPLETE", "UPDATE_COMPLETE", "IMPORT_COMPLETE", "DELETE_COMPLETE")
_REVIEW = "REVIEW_IN_PROGRESS"  # of a stack that has a change set and was never created
Json = Mapping[str, Any]


class CloudFormationStack:
    """A stack in one region, by its name."""

    def __init__(self, aws: AwsAccount, name: str) -> None:
        self.name, self._aws = name, aws

    def find(self) -> Json | None:
        """Return the stack as DescribeStacks answers; None if there is none, or it was never created."""
        # AWS has no code of its own for "does not exist", and nothing else about a name is invalid.
        answer = self.call("describe_stacks", absent=("ValidationError",), StackName=self.name)
        found = answer["Stacks"][0] if answer else {"StackStatus": _REVIEW}
        return None if found["StackStatus"] == _REVIEW else found

    def call(self, operation: str, **given: Any) -> Any:
        """Return the answer to one call. Raises ServiceError."""
        return self._aws.call("cloudformation", operation, **given)

    def plan(self, body: str, parameters: Mapping[str, str], *, new: bool) -> tuple[str, list[Json]]:
        """Create a change set; return its ARN and each ResourceChange, or nothing if all is as wanted.

        A new stack imports resources that exist and that the template would retain. The change set of an
        existing one also reverts changes that were made outside of the stack. Raises ServiceError.
        """
        made = self.call(
            "create_change_set",
            StackName=self.name,
            ChangeSetName=_new_name(),
            TemplateBody=body,
            Parameters=[{"ParameterKey": key, "ParameterValue": text} for key, text in parameters.items()],
            Capabilities=["CAPABILITY_NAMED_IAM"],
            ChangeSetType="CREATE" if new else "UPDATE",
            **({"ImportExistingResources": True} if new else {"DeploymentMode": "REVERT_DRIFT"}),
        )
        named = {"ChangeSetName": made["Id"]}
        found = self._wait(lambda: self.call("describe_change_set", **named), "Status")
        if found["Status"] == "CREATE_COMPLETE":
            return made["Id"], [each["ResourceChange"] for each in found.get("Changes", ())]
        reason, events = str(found.get("StatusReason", "")), []
        if is_needed := not any(text in reason for text in _NOTHING_TO_CHANGE):
            # The reason only mentions the findings of the early validation, such as a name that is taken.
            events = self.call("describe_events", **named, Filters={"FailedEvents": True})["OperationEvents"]
        self.discard(made["Id"])
        if not is_needed:
            return "", []
        findings = [
            f"  {each.get('LogicalResourceId', self.name)}: {each['ValidationStatusReason']}"
            for each in events
            if each.get("ValidationStatusReason")
        ]
        raise ServiceError("\n".join([f"CloudFormation refused the changes: {reason}", *findings]))

    def discard(self, change_set: str) -> None:
        """Delete a change set, and the empty stack that was made for it."""
        self.call("delete_change_set", ChangeSetName=change_set)
        found = self.call("describe_stacks", absent=("ValidationError",), StackName=self.name)
        if found and found["Stacks"][0]["StackStatus"] == _REVIEW:
            self.call("delete_stack", StackName=self.name)

    def execute(self, change_set: str) -> None:
        """Execute a change set and wait for its end. Raises ServiceError, WaitTimeoutError."""
        # A rollback deletes also created resources that would keep their data: they are still empty.
        self._change("execute_change_set", ChangeSetName=change_set, RetainExceptOnCreate=True)

    def delete(self) -> None:
        """Delete the stack and wait for its end. Raises ServiceError, WaitTimeoutError."""
        self._change("delete_stack")

    def _change(self, operation: str, **given: Any) -> None:
        """Start a change and wait until the stack has settled; raise ServiceError if it failed."""
        # By its ARN a deleted stack can still be read. The token marks the events of this change.
        stack, token = self.call("describe_stacks", StackName=self.name)["Stacks"][0]["StackId"], _new_name()
        self.call(operation, StackName=stack, ClientRequestToken=token, **given)
        describe = lambda: self.call("describe_stacks", StackName=stack)["Stacks"][0]  # noqa: E731
        status = self._wait(describe, "StackStatus")["StackStatus"]
        if status in _GOOD:
            return
        events = self.call("describe_stack_events", StackName=stack)["StackEvents"]  # the newest first
        reasons = [
            f"  {each['LogicalResourceId']} ({each['ResourceType']} {each.get('PhysicalResourceId') or ''}): "
            f"{each['ResourceStatusReason']}"
            for each in reversed(events)
            if each.get("ClientRequestToken") == token and each["ResourceStatus"].endswith("_FAILED")
            # The other resources were cancelled because of the first failure.
            and "cancelled" not in (each.get("ResourceStatusReason") or "cancelled")
        ]
        first = f"Stack {self.name} was not changed as planned: it is {status}."
        raise ServiceError("\n".join([first, *reasons, "Remove the cause and run this again."]))

    def _wait(self, describe: Callable[[], Json], key: str) -> Json:
        """Return what `describe` answers once its status has settled; raise WaitTimeoutError if it does not."""
        deadline, shown = time.monotonic() + _SECONDS, ""
        while (found := describe())[key].endswith(("_IN_PROGRESS", "_PENDING")) or found[key] != shown:
            if found[key] != shown:
                shown = found[key]
                _logger.info("%s: %s", self.name, shown)
                continue
            if time.monotonic() >= deadline:
                raise WaitTimeoutError(
                    f"Stack {self.name} has not settled within {_SECONDS / 60:.0f} minutes. CloudFormation "
                    "continues without this command: aws cloudformation describe-stack-events --stack-name "
                    f"{self.name} shows its progress. Run this again when it has ended."
                )
            time.sleep(_PAUSE_SECONDS)
        return found


def _new_name() -> str:
    return f"trainyard-{uuid.uuid4().hex[:12]}"
