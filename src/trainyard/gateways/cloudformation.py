"""One CloudFormation stack: plan a change set, execute it or discard it, delete the stack.

    template, parameters  ──plan──>  ChangeSet  ──execute──>  settled, or ServiceError with the reasons

Every call and every wait has a time limit. The caller decides which changes are wanted.
"""

import logging
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from trainyard.errors import ServiceError, WaitTimeoutError
from trainyard.gateways.aws_refusals import AwsAccount

_logger = logging.getLogger("trainyard.cloudformation")
_SECONDS, _PAUSE_SECONDS = 1800.0, 3.0
_NOTHING_TO_CHANGE = ("submitted information didn't contain changes", "No updates are to be performed")
_GOOD = ("CREATE_COMPLETE", "UPDATE_COMPLETE", "IMPORT_COMPLETE", "DELETE_COMPLETE")
REVIEW = "REVIEW_IN_PROGRESS"  # of a stack that has a change set and was never created
Json = Mapping[str, Any]


@dataclass(frozen=True)
class ChangeSet:
    """A change set that can be executed."""

    arn: str
    stack_id: str
    changes: tuple[Json, ...]
    """Each ResourceChange, as DescribeChangeSet answers."""


class CloudFormationStack:
    """A stack in one region, by its name."""

    def __init__(self, aws: AwsAccount, name: str) -> None:
        self.name, self._aws = name, aws

    def find(self) -> Json | None:
        """Return the stack as DescribeStacks answers; None if there is none, or it was never created."""
        found = self._find()
        return None if found is None or found["StackStatus"] == REVIEW else found

    def template(self) -> Any:
        """Return the template of the stack: its text, or an object if it was written as JSON."""
        return self._call("get_template", StackName=self.name)["TemplateBody"]

    def resources(self) -> dict[str, Json]:
        """Return logical name -> resource as ListStackResources answers: a page has more than we make."""
        found = self._call("list_stack_resources", StackName=self.name)["StackResourceSummaries"]
        return {
            each["LogicalResourceId"]: each for each in found if each["ResourceStatus"] != "DELETE_COMPLETE"
        }

    def plan(self, body: str, parameters: Mapping[str, str], *, new: bool) -> ChangeSet | None:
        """Create a change set; None if nothing is to be changed. Raises ServiceError, WaitTimeoutError.

        A new stack adopts resources that exist and that the template would retain. The change set of an
        existing one also reverts changes that were made outside of the stack.
        """
        how = {"ChangeSetType": "CREATE", "ImportExistingResources": True}
        if not new:
            how = {"ChangeSetType": "UPDATE", "DeploymentMode": "REVERT_DRIFT"}
        try:
            made = self._call(
                "create_change_set",
                StackName=self.name,
                ChangeSetName=f"trainyard-{uuid.uuid4().hex[:12]}",
                TemplateBody=body,
                Parameters=[
                    {"ParameterKey": key, "ParameterValue": text} for key, text in parameters.items()
                ],
                Capabilities=["CAPABILITY_NAMED_IAM"],
                **how,
            )
        except ServiceError as error:
            if any(text in str(error) for text in _NOTHING_TO_CHANGE):
                return None
            raise
        planned = ChangeSet(made["Id"], made["StackId"], ())
        changes = None
        try:
            changes = self._changes(planned.arn)
        finally:
            if changes is None:
                self.discard(planned)
        return None if changes is None else ChangeSet(planned.arn, planned.stack_id, changes)

    def _changes(self, arn: str) -> tuple[Json, ...] | None:
        deadline = time.monotonic() + _SECONDS
        asked = {"ChangeSetName": arn, "IncludePropertyValues": True}
        while (found := self._call("describe_change_set", **asked))["Status"].startswith(
            ("CREATE_PENDING", "CREATE_IN_PROGRESS")
        ):
            self._wait(deadline)
        reason = str(found.get("StatusReason", ""))
        if found["Status"] == "FAILED":
            if any(text in reason for text in _NOTHING_TO_CHANGE):
                return None
            raise ServiceError(
                "\n".join([f"CloudFormation refused the changes: {reason}", *self._reasons(arn)])
            )
        changes = list(found.get("Changes", ()))
        while token := found.get("NextToken"):
            found = self._call("describe_change_set", **asked, NextToken=token)
            changes += found["Changes"]
        return tuple(each["ResourceChange"] for each in changes)

    def _reasons(self, arn: str) -> list[str]:
        """Return the findings of the early validation, which the reason of a change set only mentions."""
        answer = self._call("describe_events", ChangeSetName=arn, Filters={"FailedEvents": True})
        return [
            f"  {each.get('LogicalResourceId', self.name)}: {each['ValidationStatusReason']}"
            for each in answer["OperationEvents"]
            if each.get("ValidationStatusReason")
        ]

    def discard(self, planned: ChangeSet) -> None:
        """Delete a change set, and the empty stack that was made for it."""
        self._call("delete_change_set", ChangeSetName=planned.arn)
        found = self._find()
        if found is not None and found["StackStatus"] == REVIEW and found["StackId"] == planned.stack_id:
            self._call("delete_stack", StackName=planned.stack_id)

    def execute(self, planned: ChangeSet) -> None:
        """Execute a change set and wait for its end. Raises ServiceError, WaitTimeoutError."""
        before = self._events(planned.stack_id)
        # A rollback deletes also created resources that would keep their data: they are still empty.
        self._call("execute_change_set", ChangeSetName=planned.arn, RetainExceptOnCreate=True)
        self._settle(planned.stack_id, before)

    def delete(self, stack_id: str) -> None:
        """Delete the stack and wait for its end. Raises ServiceError, WaitTimeoutError."""
        before = self._events(stack_id)
        self._call("delete_stack", StackName=stack_id)
        self._settle(stack_id, before)

    def _settle(self, stack_id: str, events: list[Json]) -> None:
        """Log the events after `events` until the stack has settled; raise ServiceError if it failed."""
        deadline, reasons, status = time.monotonic() + _SECONDS, [], ""
        while not status or status.endswith("_IN_PROGRESS"):
            self._wait(deadline)
            newest = events[0]["EventId"] if events else None
            events = self._events(stack_id)
            for event in reversed(list(takewhile(lambda each: each["EventId"] != newest, events))):  # noqa: B023
                state, reason = event["ResourceStatus"], event.get("ResourceStatusReason") or ""
                _logger.info("%-28s %s %s", state, event["ResourceType"], event["LogicalResourceId"])
                is_stack = event.get("PhysicalResourceId") == event["StackId"]
                status = state if is_stack else status
                # The other resources were cancelled because of the first failure.
                if state.endswith("_FAILED") and reason and "cancelled" not in reason:
                    kind, name = event["ResourceType"], event.get("PhysicalResourceId") or ""
                    reasons.append(f"  {event['LogicalResourceId']} ({kind} {name}): {reason}")
        if status not in _GOOD:
            first = f"Stack {self.name} was not changed as planned: it is {status}."
            raise ServiceError("\n".join([first, *reasons, "Remove the cause and run this again."]))

    def _events(self, stack_id: str) -> list[Json]:
        """Return the newest 100 events of the stack, the newest first."""
        found: list[Json] = self._call("describe_stack_events", StackName=stack_id)["StackEvents"]
        return found

    def _find(self) -> Json | None:
        # AWS has no code of its own for "does not exist", and nothing else about a name is invalid.
        absent = ("ValidationError",)
        answer = self._aws.call("cloudformation", "describe_stacks", absent=absent, StackName=self.name)
        return None if answer is None else answer["Stacks"][0]

    def _call(self, operation: str, **arguments: Any) -> Any:
        return self._aws.call("cloudformation", operation, **arguments)

    def _wait(self, deadline: float) -> None:
        if time.monotonic() >= deadline:
            raise WaitTimeoutError(
                f"Stack {self.name} has not settled within {_SECONDS / 60:.0f} minutes. CloudFormation "
                "continues without this command: aws cloudformation describe-stack-events --stack-name "
                f"{self.name} shows its progress. Run this again when it has ended."
            )
        time.sleep(_PAUSE_SECONDS)
