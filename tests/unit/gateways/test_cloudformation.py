"""A stack against scripted answers, where moto has no answer; AWS's own model checks each request."""

from typing import Any, cast

import pytest
from botocore.session import get_session
from botocore.validate import ParamValidator

from trainyard.errors import ServiceError, WaitTimeoutError
from trainyard.gateways import cloudformation
from trainyard.gateways.aws_refusals import AwsAccount
from trainyard.gateways.cloudformation import CloudFormationStack

ARN, STACK = (
    "arn:aws:cloudformation:us-west-2:1:changeSet/c/1",
    "arn:aws:cloudformation:us-west-2:1:stack/lab/1",
)
PLANNED = {"create_change_set": [{"Id": ARN, "StackId": STACK}]}
NOTHING = "The submitted information didn't contain changes. Submit different information."


def stands(status: str) -> dict[str, Any]:
    return {"Stacks": [{"StackStatus": status, "StackId": STACK}]}


class Aws:
    """Answers each operation in turn, the last answer again and again."""

    def __init__(self, **answers: list[Any]) -> None:
        self.answers: dict[str, list[Any]] = {"describe_stacks": [stands("UPDATE_COMPLETE")], **answers}
        self.events: list[dict[str, Any]] = []
        self.requests: list[tuple[str, dict[str, Any]]] = []

    def call(self, service: str, operation: str, *, absent: tuple[str, ...] = (), **given: Any) -> Any:
        model = get_session().get_service_model(service)
        name = "".join(word.capitalize() for word in operation.split("_"))
        report = ParamValidator().validate(given, model.operation_model(name).input_shape)
        assert not report.has_errors(), report.generate_report()
        self.requests.append((operation, given))
        if operation == "describe_stack_events":
            tokens = [each["ClientRequestToken"] for _, each in self.requests if "ClientRequestToken" in each]
            return {"StackEvents": [{"ClientRequestToken": tokens[-1], **each} for each in self.events]}
        answers = self.answers.get(operation, [{}])
        return answers.pop(0) if len(answers) > 1 else answers[0]

    def operations(self) -> list[str]:
        return [operation for operation, _ in self.requests]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cloudformation, "_PAUSE_SECONDS", 0.0)


def stack(aws: Aws) -> CloudFormationStack:
    return CloudFormationStack(cast("AwsAccount", aws), "lab")


def test_a_stack_that_agrees_has_no_change_set_and_a_name_that_is_taken_is_named() -> None:
    agreed = Aws(**PLANNED, describe_change_set=[{"Status": "FAILED", "StatusReason": NOTHING}])
    assert stack(agreed).plan("{}", {}, new=False) == ("", [])
    assert agreed.requests[0][1]["DeploymentMode"] == "REVERT_DRIFT"
    assert "delete_change_set" in agreed.operations() and "delete_stack" not in agreed.operations()
    why = {"LogicalResourceId": "GitHubRole", "ValidationStatusReason": "lab-github already exists"}
    taken = Aws(
        **PLANNED,
        describe_stacks=[stands("REVIEW_IN_PROGRESS"), stands("UPDATE_COMPLETE")],
        describe_change_set=[
            {"Status": "CREATE_IN_PROGRESS"},
            {"Status": "FAILED", "StatusReason": "DescribeEvents"},
        ],
        describe_events=[{"OperationEvents": [why]}],
    )
    with pytest.raises(ServiceError, match="GitHubRole: lab-github already exists"):
        stack(taken).plan("{}", {}, new=True)
    assert taken.operations()[-1] == "delete_stack"
    stack(taken).discard("made", new=True)
    assert taken.operations()[-2:] == ["delete_change_set", "describe_stacks"], "another set-up created it"
    review = Aws(describe_stacks=[stands("REVIEW_IN_PROGRESS")])
    assert stack(review).find() is None, "a stack that was never created is none"


def test_a_failure_has_the_reason_of_the_resource_that_caused_it() -> None:
    reasons = {"LogGroup": "Resource update cancelled", "BuildRole": "must detach all policies first"}
    failed = {"ResourceStatus": "UPDATE_FAILED"}
    end = "UPDATE_ROLLBACK_COMPLETE"
    aws = Aws(describe_stacks=[stands(each) for each in ("X_IN_PROGRESS", end)])
    for name, reason in reasons.items():
        aws.events.append({**failed, "LogicalResourceId": name, "ResourceStatusReason": reason})
    aws.events.append({**failed, "ClientRequestToken": "an earlier one", "LogicalResourceId": "Old"})
    with pytest.raises(ServiceError) as raised:
        stack(aws).execute(ARN)
    text = str(raised.value)
    assert "BuildRole: must detach all policies first" in text and end in text
    assert "cancelled" not in text and "Old" not in text


def test_a_stack_that_does_not_settle_ends_with_how_to_follow_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cloudformation, "_SECONDS", 0.0)
    with pytest.raises(WaitTimeoutError, match="describe-stack-events --stack-name lab"):
        stack(Aws(describe_stacks=[stands("X_IN_PROGRESS")])).execute(ARN)
