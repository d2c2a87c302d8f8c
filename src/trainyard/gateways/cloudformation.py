"""One CloudFormation stack: plan a change set, execute it or discard it.

    template, parameters  ──plan──>  changes  ──execute──>  settled, or ServiceError with the reasons

Every call and every wait has a time limit. The caller decides which changes are wanted.
"""

import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from trainyard.errors import ServiceError, WaitTimeoutError
from trainyard.gateways.aws_refusals import AwsAccount

_SECONDS, _PAUSE_SECONDS = 1800.0, 3.0
_NOTHING_TO_CHANGE = ("submitted information didn't contain changes", "No updates are to be performed")
_REVIEW = "REVIEW_IN_PROGRESS"  # of a stack that has a change set and was never created
Json = Mapping[str, Any]


class CloudFormationStack:
    """A stack in one region, by its name. Each method raises ServiceError."""

    def __init__(self, aws: AwsAccount, name: str) -> None:
        self.name = name
        self._call: Callable[..., Any] = partial(aws.call, "cloudformation")

    def find(self) -> Json | None:
        """Return the stack as DescribeStacks answers; None if there is none, or it was never created."""
        # AWS has no code of its own for "does not exist", and nothing else about a name is invalid.
        answer = self._call("describe_stacks", absent=("ValidationError",), StackName=self.name)
        found: Json = answer["Stacks"][0] if answer else {"StackStatus": _REVIEW}
        return None if found["StackStatus"] == _REVIEW else found

    def plan(self, body: str, parameters: Mapping[str, str], *, new: bool) -> tuple[str, list[Json]]:
        """Create a change set; return its ARN and each ResourceChange, or nothing if all is as wanted.

        The change set of an existing stack also reverts changes that were made outside of it.
        """
        made = self._call(
            "create_change_set",
            StackName=self.name,
            ChangeSetName=f"trainyard-{uuid.uuid4().hex[:12]}",
            TemplateBody=body,
            Parameters=[{"ParameterKey": key, "ParameterValue": text} for key, text in parameters.items()],
            Capabilities=["CAPABILITY_NAMED_IAM"],
            ChangeSetType="CREATE" if new else "UPDATE",
            **({} if new else {"DeploymentMode": "REVERT_DRIFT"}),
        )["Id"]
        found = self._wait("Status", partial(self._call, "describe_change_set", ChangeSetName=made))
        if found["Status"] == "CREATE_COMPLETE":
            return made, [each["ResourceChange"] for each in found.get("Changes", ())]
        reason, findings = str(found.get("StatusReason", "")), ""
        if is_refused := not any(text in reason for text in _NOTHING_TO_CHANGE):
            # The reason only mentions the findings of the early validation, such as a name that is taken.
            events = self._call("describe_events", ChangeSetName=made, Filters={"FailedEvents": True})
            findings = _reasons(events["OperationEvents"], "ValidationStatusReason")
        self.discard(made, new=new)
        if is_refused:
            raise ServiceError(f"CloudFormation refused the changes: {reason}{findings}")
        return "", []

    def discard(self, change_set: str, *, new: bool) -> None:
        """Delete a change set, and the empty stack that was made for that of a new one."""
        self._call("delete_change_set", ChangeSetName=change_set)
        if new and self.find() is None:  # another set-up may have created it meanwhile
            self._call("delete_stack", StackName=self.name)

    def execute(self, change_set: str) -> None:
        """Execute a change set and wait for its end. Raises WaitTimeoutError, too."""
        token = f"trainyard-{uuid.uuid4().hex}"  # marks the events of this change
        # A rollback deletes also created resources that would keep their data: they are still empty.
        kept = {"ClientRequestToken": token, "RetainExceptOnCreate": True}
        self._call("execute_change_set", StackName=self.name, ChangeSetName=change_set, **kept)
        time.sleep(_PAUSE_SECONDS)  # the status may still be that before the change
        describe = partial(self._call, "describe_stacks", StackName=self.name)
        status = self._wait("StackStatus", lambda: describe()["Stacks"][0])["StackStatus"]
        if status not in ("CREATE_COMPLETE", "UPDATE_COMPLETE"):
            events = self._call("describe_stack_events", StackName=self.name)["StackEvents"]
            # Those of a stack are the newest first.
            own = (each for each in reversed(events) if each.get("ClientRequestToken") == token)
            failed = (each for each in own if each["ResourceStatus"].endswith("_FAILED"))
            text = f"Stack {self.name} was not changed as planned: it is {status}."
            reasons = _reasons(failed, "ResourceStatusReason")
            raise ServiceError(f"{text}{reasons}\nRemove the cause and run this again.")

    def _wait(self, key: str, describe: Callable[[], Json]) -> Json:
        """Return what `describe` answers once its status has settled."""
        deadline = time.monotonic() + _SECONDS
        while (found := describe())[key].endswith(("_IN_PROGRESS", "_PENDING")):
            if time.monotonic() >= deadline:
                raise WaitTimeoutError(
                    f"Stack {self.name} has not settled within {_SECONDS / 60:.0f} minutes. CloudFormation "
                    "continues without this command: aws cloudformation describe-stack-events --stack-name "
                    f"{self.name} shows its progress. Run this again when it has ended."
                )
            time.sleep(_PAUSE_SECONDS)
        return found


def _reasons(events: Iterable[Json], key: str) -> str:
    """Return a line for each resource that failed; others are cancelled because of the first failure."""
    known = ((each.get("LogicalResourceId", "stack"), each.get(key) or "") for each in events)
    return "".join(f"\n  {name}: {reason}" for name, reason in known if reason and "cancelled" not in reason)
