"""One CloudFormation stack: create a change set, execute it, follow its events, delete the stack.

    template, parameters  ──>  ChangeSet  ──>  StackEvent, StackEvent, …  ──>  StackState

Every call and every wait has a time limit. A refusal by AWS becomes an error that names the call. The caller
decides which changes are wanted, and what a failure means.
"""

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trainyard.errors import ServiceError, WaitTimeoutError

_CHANGE_SET_SECONDS, _STACK_SECONDS, _PAUSE_SECONDS = 600.0, 1800.0, 3.0
_NOTHING_TO_CHANGE = ("The submitted information didn't contain changes", "No updates are to be performed")
_LONGEST_VALUE = 60
REVIEW = "REVIEW_IN_PROGRESS"  # of a stack that has a change set and was never created


@dataclass(frozen=True)
class StackState:
    """A stack as DescribeStacks answers."""

    stack_id: str
    status: str
    parameters: Mapping[str, str]


@dataclass(frozen=True)
class PlannedChange:
    """A change of one resource, as a change set lists it."""

    name: str
    """The logical name in the template."""
    type: str
    action: str
    """Add, Import, Modify, Remove, Dynamic or SyncWithActual."""
    replaces: bool = False
    retained: bool = False
    """Whether a resource that leaves the stack stays in the account."""
    differences: tuple[str, ...] = ()


@dataclass(frozen=True)
class ChangeSet:
    """A change set that can be executed."""

    arn: str
    stack_id: str
    changes: tuple[PlannedChange, ...]


@dataclass(frozen=True)
class StackEvent:
    """A step of an operation on a stack."""

    name: str
    type: str
    physical_id: str
    status: str
    reason: str
    of_stack: bool
    """Whether it is about the stack itself."""


class CloudFormationStack:
    """A stack in one region, by its name."""

    def __init__(
        self,
        call: Callable[..., Any],
        name: str,
        *,
        pause: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`call` is `AwsAccount.call`."""
        self.name = name
        self._aws, self._pause, self._clock = call, pause, clock

    def _call(self, operation: str, *, absent: tuple[str, ...] = (), **arguments: Any) -> Any:
        return self._aws("cloudformation", operation, absent=absent, **arguments)

    def state(self) -> StackState | None:
        """Return the stack; None if there is none of this name."""
        # AWS has no code of its own for "does not exist", and nothing else about a name is invalid.
        answer = self._call("describe_stacks", absent=("ValidationError",), StackName=self.name)
        if answer is None or answer["Stacks"][0]["StackStatus"] == "DELETE_COMPLETE":
            return None
        stack = answer["Stacks"][0]
        parameters = {
            each["ParameterKey"]: each.get("ParameterValue", "") for each in stack.get("Parameters", [])
        }
        return StackState(stack["StackId"], stack["StackStatus"], parameters)

    def resources(self) -> dict[str, str]:
        """Return logical name -> type of the resources that the stack has."""
        found = self._pages("list_stack_resources", "StackResourceSummaries", StackName=self.name)
        return {
            each["LogicalResourceId"]: each["ResourceType"]
            for each in found
            if each["ResourceStatus"] != "DELETE_COMPLETE"
        }

    def template(self) -> str | Mapping[str, Any]:
        """Return the template of the stack: the text, or the object if it was written as JSON."""
        found: str | Mapping[str, Any] = self._call("get_template", StackName=self.name)["TemplateBody"]
        return found

    def create_change_set(
        self, body: str, parameters: Mapping[str, str], *, new: bool, imports: bool = False
    ) -> ChangeSet | None:
        """Create a change set and wait for it; None if nothing is to be changed.

        `imports` lets a new stack adopt resources that exist already. The change set of an existing stack
        also reverts changes that were made outside of the stack. Raises ServiceError with the reasons if
        CloudFormation refuses, WaitTimeoutError.
        """
        listed = [{"ParameterKey": name, "ParameterValue": value} for name, value in parameters.items()]
        how: dict[str, Any] = {"ChangeSetType": "CREATE"}
        if imports:
            how["ImportExistingResources"] = True
        if not new:
            how = {"ChangeSetType": "UPDATE", "DeploymentMode": "REVERT_DRIFT"}
        try:
            made = self._call(
                "create_change_set",
                StackName=self.name,
                ChangeSetName=f"trainyard-{uuid.uuid4().hex[:12]}",
                TemplateBody=body,
                Parameters=listed,
                Capabilities=["CAPABILITY_NAMED_IAM"],
                **how,
            )
        except ServiceError as error:
            if any(text in str(error) for text in _NOTHING_TO_CHANGE):
                return None
            raise
        change_set, finished = ChangeSet(made["Id"], made["StackId"], ()), None
        try:
            finished = self._await_change_set(change_set)
        finally:
            if finished is None:
                self.discard(change_set)
        return finished

    def _await_change_set(self, change_set: ChangeSet) -> ChangeSet | None:
        deadline = self._clock() + _CHANGE_SET_SECONDS
        arn = change_set.arn
        while (answer := self._call("describe_change_set", ChangeSetName=arn))["Status"].startswith(
            ("CREATE_PENDING", "CREATE_IN_PROGRESS")
        ):
            self._wait(deadline, f"a change set of stack {self.name} is still {answer['Status']}")
        reason = str(answer.get("StatusReason", ""))
        if answer["Status"] != "FAILED":
            pages = self._pages(
                "describe_change_set", "Changes", ChangeSetName=arn, IncludePropertyValues=True
            )
            changes = tuple(_change(each["ResourceChange"]) for each in pages)
            return ChangeSet(arn, change_set.stack_id, changes)
        if reason.startswith(_NOTHING_TO_CHANGE):
            return None
        found = self._validation_errors(arn) if "validation" in reason.lower() else ()
        raise ServiceError("\n".join([f"CloudFormation refused the changes: {reason}", *found]))

    def _validation_errors(self, arn: str) -> Iterator[str]:
        """Yield the findings of the early validation, which the reason of a change set only mentions."""
        failed = {"ChangeSetName": arn, "Filters": {"FailedEvents": True}}
        for each in self._pages("describe_events", "OperationEvents", **failed):
            if reason := each.get("ValidationStatusReason"):
                kind = each.get("ResourceType", "stack")
                yield f"  {each.get('LogicalResourceId', self.name)} ({kind}): {reason}"

    def discard(self, change_set: ChangeSet) -> None:
        """Delete a change set, and the empty stack that was made for it."""
        self._call("delete_change_set", ChangeSetName=change_set.arn)
        state = self.state()
        if state is None or state.status != REVIEW or state.stack_id != change_set.stack_id:
            return
        self._call("delete_stack", StackName=change_set.stack_id)
        deadline = self._clock() + _CHANGE_SET_SECONDS
        while (state := self.state()) and state.stack_id == change_set.stack_id:
            self._wait(deadline, f"the empty stack {self.name} is still {state.status}")

    def execute(self, change_set: ChangeSet) -> Iterator[StackEvent]:
        """Execute a change set; yield the events until the stack has settled. Raises WaitTimeoutError."""
        before = self._newest_event(change_set.stack_id)
        # A rollback deletes also created resources that would keep their data: they are still empty.
        self._call("execute_change_set", ChangeSetName=change_set.arn, RetainExceptOnCreate=True)
        yield from self._follow(change_set.stack_id, before)

    def delete(self, stack_id: str) -> Iterator[StackEvent]:
        """Delete the stack; yield the events until the deletion ends or fails. Raises WaitTimeoutError."""
        before = self._newest_event(stack_id)
        self._call("delete_stack", StackName=stack_id)
        yield from self._follow(stack_id, before)

    def _follow(self, stack_id: str, before: str) -> Iterator[StackEvent]:
        """Yield the events; the stack's own status may be the old one for a short time after a request."""
        deadline, settled = self._clock() + _STACK_SECONDS, False
        while True:
            events, before = self._events_since(stack_id, before)
            for event in events:
                yield event
                if event.of_stack:
                    settled = not event.status.endswith("_IN_PROGRESS")
            if settled:
                return
            self._wait(deadline, f"stack {self.name} has not settled")

    def _newest_event(self, stack_id: str) -> str:
        events = self._call("describe_stack_events", StackName=stack_id)["StackEvents"]
        return events[0]["EventId"] if events else ""

    def _events_since(self, stack_id: str, before: str) -> tuple[list[StackEvent], str]:
        """Return the events after the one with the id `before`, oldest first, and the id of the newest."""
        found = []
        for each in self._pages("describe_stack_events", "StackEvents", StackName=stack_id):
            if each["EventId"] == before:
                break
            found.append(each)
        newest = found[0]["EventId"] if found else before
        return [_event(each) for each in reversed(found)], newest

    def _pages(self, operation: str, key: str, **arguments: Any) -> Iterator[dict[str, Any]]:
        """The items of every page of an answer."""
        token: dict[str, Any] = {}
        while True:
            answer = self._call(operation, **arguments, **token)
            yield from answer.get(key, [])
            if not answer.get("NextToken"):
                return
            token = {"NextToken": answer["NextToken"]}

    def _wait(self, deadline: float, what: str) -> None:
        if self._clock() >= deadline:
            raise WaitTimeoutError(
                f"{what} after the time limit. CloudFormation continues without this command. "
                f"aws cloudformation describe-stack-events --stack-name {self.name} shows its progress; "
                "run this again when it has ended."
            )
        self._pause(_PAUSE_SECONDS)


def _change(found: Mapping[str, Any]) -> PlannedChange:
    targets = [detail.get("Target", {}) for detail in found.get("Details", [])]
    return PlannedChange(
        name=found["LogicalResourceId"],
        type=found["ResourceType"],
        action=found["Action"],
        replaces=found.get("Replacement") == "True",
        retained=found.get("PolicyAction") == "Retain",
        differences=tuple(dict.fromkeys(_difference(target) for target in targets)),
    )


def _difference(target: Mapping[str, Any]) -> str:
    name = target.get("Path") or target.get("Name") or target.get("Attribute", "")
    name = name.removeprefix("/Properties").strip("/").replace("/", ".")
    before, after = (str(target.get(f"{which}Value") or "")[:_LONGEST_VALUE] for which in ("Before", "After"))
    return f"{name}: {before} -> {after}" if before or after else name


def _event(found: Mapping[str, Any]) -> StackEvent:
    return StackEvent(
        name=found["LogicalResourceId"],
        type=found.get("ResourceType", ""),
        physical_id=found.get("PhysicalResourceId", ""),
        status=found.get("ResourceStatus", ""),
        reason=found.get("ResourceStatusReason") or "",
        of_stack=found.get("PhysicalResourceId") == found["StackId"],
    )
