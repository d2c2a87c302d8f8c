"""A stack against scripted answers; each request is checked with AWS's own model. moto has no failures."""

import logging
from collections.abc import Callable
from typing import Any, cast

import pytest
from botocore.session import get_session
from botocore.validate import ParamValidator

from trainyard.errors import ServiceError, WaitTimeoutError
from trainyard.gateways import cloudformation
from trainyard.gateways.aws_refusals import AwsAccount
from trainyard.gateways.cloudformation import ChangeSet, CloudFormationStack

ARN, STACK = (
    "arn:aws:cloudformation:us-west-2:1:changeSet/c/1",
    "arn:aws:cloudformation:us-west-2:1:stack/lab/1",
)
MADE = {"Id": ARN, "StackId": STACK}
NOTHING = "The submitted information didn't contain changes. Submit different information."


class Aws:
    """Answers each operation in turn, the last one again and again; an error is raised."""

    def __init__(self, **answers: list[Any]) -> None:
        self.answers, self.requests = answers, list[tuple[str, dict[str, Any]]]()

    def call(self, service: str, operation: str, *, absent: tuple[str, ...] = (), **given: Any) -> Any:
        model = get_session().get_service_model(service)
        name = "".join(word.capitalize() for word in operation.split("_"))
        report = ParamValidator().validate(given, model.operation_model(name).input_shape)
        assert not report.has_errors(), report.generate_report()
        self.requests.append((operation, given))
        answers = self.answers.get(operation, [{}])
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def operations(self) -> list[str]:
        return [operation for operation, _ in self.requests]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cloudformation, "_PAUSE_SECONDS", 0.0)


def stack(aws: Aws) -> CloudFormationStack:
    return CloudFormationStack(cast("AwsAccount", aws), "lab")


def event(number: int, name: str, status: str, reason: str = "", physical: str = "it") -> dict[str, Any]:
    found = {"EventId": str(number), "StackId": STACK, "LogicalResourceId": name, "ResourceStatus": status}
    return {
        **found,
        "ResourceType": "AWS::IAM::Role",
        "PhysicalResourceId": physical,
        "ResourceStatusReason": reason,
    }


def test_the_changes_of_every_page_are_read_and_an_empty_stack_goes_with_its_change_set() -> None:
    pages = [
        {"Status": "CREATE_IN_PROGRESS"},
        {"Status": "CREATE_COMPLETE", "Changes": [{"ResourceChange": {"Action": "Add"}}], "NextToken": "2"},
        {"Status": "CREATE_COMPLETE", "Changes": [{"ResourceChange": {"Action": "Import"}}]},
    ]
    review = {"Stacks": [{"StackStatus": "REVIEW_IN_PROGRESS", "StackId": STACK}]}
    aws = Aws(create_change_set=[MADE], describe_change_set=pages, describe_stacks=[review])
    planned = stack(aws).plan("{}", {"LogDays": "7"}, new=True)
    assert planned is not None and [each["Action"] for each in planned.changes] == ["Add", "Import"]
    assert aws.requests[0][1]["ImportExistingResources"] is True
    stack(aws).discard(planned)
    assert aws.operations()[-3:] == ["delete_change_set", "describe_stacks", "delete_stack"]
    assert stack(aws).find() is None, "a stack that was never created is none"


@pytest.mark.parametrize(
    "answers",
    [
        {"create_change_set": [ServiceError("AWS refused: No updates are to be performed.")]},
        {"create_change_set": [MADE], "describe_change_set": [{"Status": "FAILED", "StatusReason": NOTHING}]},
    ],
    ids=["at once", "later"],
)
def test_a_stack_that_agrees_has_no_change_set(answers: dict[str, Any]) -> None:
    aws = Aws(**answers, describe_stacks=[{"Stacks": [{"StackStatus": "UPDATE_COMPLETE", "StackId": STACK}]}])
    assert stack(aws).plan("{}", {}, new=False) is None
    assert aws.requests[0][1]["DeploymentMode"] == "REVERT_DRIFT"
    assert "delete_stack" not in aws.operations()


def test_a_name_that_is_taken_is_named_and_the_change_set_discarded() -> None:
    why = {"LogicalResourceId": "GitHubRole", "ValidationStatusReason": "lab-github already exists"}
    failed = {
        "Status": "FAILED",
        "StatusReason": "[AWS::EarlyValidation::ResourceExistenceCheck]: DescribeEvents",
    }
    aws = Aws(
        create_change_set=[MADE],
        describe_change_set=[failed],
        describe_events=[{"OperationEvents": [why]}],
        describe_stacks=[None],
    )
    with pytest.raises(ServiceError, match="GitHubRole: lab-github already exists"):
        stack(aws).plan("{}", {}, new=True)
    assert "delete_change_set" in aws.operations()


Act = Callable[[CloudFormationStack], None]


@pytest.mark.parametrize(
    ("act", "end"),
    [
        (lambda it: it.execute(ChangeSet(ARN, STACK, ())), "UPDATE_ROLLBACK_COMPLETE"),
        (lambda it: it.delete(STACK), "DELETE_FAILED"),
    ],
)
def test_a_failure_has_the_reason_of_the_resource_that_caused_it(
    act: Act, end: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    old = [event(1, "lab", "CREATE_COMPLETE", physical=STACK)]
    first = [event(2, "lab", "UPDATE_IN_PROGRESS", physical=STACK), *old]
    failed = [event(3, "BuildRole", "UPDATE_FAILED", "must detach all policies first", "lab-build"), *first]
    cancelled = [event(4, "LogGroup", "UPDATE_FAILED", "Resource update cancelled"), *failed]
    last = [event(5, "lab", end, physical=STACK), *cancelled]
    pages = [{"StackEvents": each} for each in (old, old, first, cancelled, last)]
    with pytest.raises(ServiceError) as raised:
        act(stack(Aws(describe_stack_events=pages)))
    text = str(raised.value)
    assert "BuildRole (AWS::IAM::Role lab-build): must detach all policies first" in text and end in text
    assert "cancelled" not in text
    assert [record.message.split()[0] for record in caplog.records] == [
        *("UPDATE_IN_PROGRESS", "UPDATE_FAILED", "UPDATE_FAILED", end),
    ]


def test_a_stack_that_does_not_settle_ends_with_5_and_how_to_follow_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cloudformation, "_SECONDS", 0.0)
    with pytest.raises(WaitTimeoutError, match="describe-stack-events --stack-name lab"):
        stack(Aws(describe_stack_events=[{"StackEvents": []}])).delete(STACK)
