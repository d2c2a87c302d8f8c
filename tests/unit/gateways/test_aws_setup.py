"""The parts of AWS that moto lacks: webhooks, access entries, another account's bucket, a new role."""

from collections.abc import Callable
from typing import Any

import pytest

from trainyard.errors import PermissionRefusedError, ServiceError
from trainyard.gateways.aws_setup.buckets import S3Bucket
from trainyard.gateways.aws_setup.builds import BuildProject
from trainyard.gateways.aws_setup.identities import AccessEntry, OidcProvider
from trainyard.infrastructure.agreement import compare_settings
from trainyard.infrastructure.settings import Account, settings_for, wanted_resources

CHOSEN = {
    "Subjects": ["repo:me/lab:environment:training"],
    "Cluster": "gpus",
    "WebhookRepository": "me/lab",
}
SETTINGS = settings_for(CHOSEN, Account("123456789012", "us-west-2"))
PROPERTIES = {resource.name: found for resource, found in wanted_resources(SETTINGS)}


class Recorded:
    """Answers of AWS by operation; every call is checked against botocore's own model of it."""

    def __init__(self, **answers: Any) -> None:
        self.answers, self.made = answers, list[tuple[str, dict[str, Any]]]()

    def __call__(self, service: str, operation: str, *, absent: tuple[str, ...] = (), **given: Any) -> Any:
        from botocore import xform_name
        from botocore.session import get_session
        from botocore.validate import ParamValidator

        model = get_session().get_service_model(service)
        names = {xform_name(name): name for name in model.operation_names}
        report = ParamValidator().validate(given, model.operation_model(names[operation]).input_shape)
        assert not report.has_errors(), report.generate_report()
        self.made.append((operation, given))
        answer = self.answers.get(operation, {})
        if isinstance(answer, list):
            answer = answer.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    @property
    def operations(self) -> list[str]:
        return [operation for operation, _ in self.made]


def test_a_project_with_a_webhook_is_made_in_two_calls() -> None:
    call = Recorded()
    BuildProject(call).create(PROPERTIES["Builds"])
    assert call.operations == ["create_project", "create_webhook"]
    project, webhook = (given for _, given in call.made)
    assert project["source"] == {
        "type": "GITHUB",
        "location": "https://github.com/me/lab.git",
        "buildspec": "buildspec.yml",
    }
    assert {"type": "EVENT", "pattern": "PUSH"} in webhook["filterGroups"][0]


def test_a_webhook_that_aws_describes_with_more_words_agrees() -> None:
    kind = BuildProject(Recorded())
    wanted_now = kind.wanted(PROPERTIES["Builds"])
    groups = [[{**each, "excludeMatchedPattern": False} for each in wanted_now["webhook"]["filterGroups"][0]]]
    has = {**wanted_now, "arn": "arn", "webhook": {"url": "u", "filterGroups": groups}}
    call = Recorded(batch_get_projects={"projects": [has]})
    found = BuildProject(call).found(PROPERTIES["Builds"])
    assert found is not None and list(compare_settings(wanted_now, found)) == []
    narrower = {**has, "webhook": {"url": "u", "filterGroups": [groups[0][:1]]}}
    call = Recorded(batch_get_projects={"projects": [narrower]})
    kind = BuildProject(call)
    assert [
        text.split(" ")[0] for text in compare_settings(wanted_now, kind.found(PROPERTIES["Builds"]))
    ] == ["webhook.filterGroups"]
    kind.change(PROPERTIES["Builds"], {"webhook"})
    assert call.operations[-1] == "update_webhook", "the project itself was not to change"


def test_a_webhook_that_is_not_chosen_any_more_is_removed() -> None:
    """Otherwise it would go on to start builds, of a source that is none."""
    plain = settings_for({}, Account("123456789012", "us-west-2"))
    p = {resource.name: found for resource, found in wanted_resources(plain)}["Builds"]
    has = {**BuildProject(Recorded()).wanted(p), "webhook": {"url": "u", "filterGroups": []}}
    call = Recorded(batch_get_projects={"projects": [has]})
    kind = BuildProject(call)
    found = kind.found(p)
    assert [text.split(" ")[0] for text in compare_settings(kind.wanted(p), found)] == ["webhook"]
    kind.change(p, {"webhook"})
    assert call.operations[-1] == "delete_webhook"
    del has["webhook"]
    found = BuildProject(Recorded(batch_get_projects={"projects": [has]})).found(p)
    assert list(compare_settings(kind.wanted(p), found)) == []


def test_a_project_that_differs_is_updated() -> None:
    call = Recorded(batch_get_projects={"projects": []})
    BuildProject(call).change(PROPERTIES["Builds"], {"timeoutInMinutes"})
    assert call.operations == ["update_project"]


def test_without_a_connection_to_github_the_remedy_is_named() -> None:
    call = Recorded(
        create_webhook=ServiceError("AWS refused codebuild:CreateWebhook (OAuthProviderException)")
    )
    with pytest.raises(ServiceError, match="connected to GitHub"):
        BuildProject(call).create(PROPERTIES["Builds"])


def test_a_role_that_is_not_known_everywhere_yet_is_waited_for() -> None:
    unknown = ServiceError("CodeBuild is not authorized to perform: sts:AssumeRole on arn:aws:iam::1:role/x")
    paused: list[float] = []
    call = Recorded(create_project=[unknown, unknown, {}])
    BuildProject(call, pause=paused.append).create(PROPERTIES["Builds"])
    assert len(paused) == 2
    call, paused = Recorded(create_project=unknown), []
    with pytest.raises(ServiceError, match="sts:AssumeRole"):
        BuildProject(call, pause=paused.append).create(PROPERTIES["Builds"])
    assert 1 < len(paused) < 20
    call, paused = Recorded(create_project=ServiceError("no such image")), []
    with pytest.raises(ServiceError, match="no such image"):
        BuildProject(call, pause=paused.append).create(PROPERTIES["Builds"])
    assert paused == []


def test_the_access_entry_is_a_group_without_a_policy_of_eks() -> None:
    p = PROPERTIES["AccessEntry"]
    call = Recorded(describe_access_entry={"accessEntry": {"kubernetesGroups": ["others"]}})
    kind = AccessEntry(call)
    assert list(compare_settings(kind.wanted(p), kind.found(p)))
    kind.change(p, {"kubernetesGroups"})
    kind.create(p)
    assert call.operations == ["describe_access_entry", "update_access_entry", "create_access_entry"]
    assert call.made[-1][1]["principalArn"] == "arn:aws:iam::123456789012:role/trainyard-github"
    assert "associate_access_policy" not in call.operations


def test_an_oidc_provider_that_others_made_gets_our_audience_and_is_never_removed() -> None:
    call = Recorded(get_open_id_connect_provider={"ClientIDList": ["theirs"]})
    kind = OidcProvider(call, partition="aws", account="123456789012")
    p = PROPERTIES["GitHubProvider"]
    assert list(compare_settings(kind.wanted(p), kind.found(p)))
    kind.change(p, {"clients"})
    assert call.made[-1][1]["ClientID"] == "sts.amazonaws.com"
    assert "other roles" in kind.stays(p)
    assert not any(operation.startswith("delete") for operation in call.operations)


def test_a_bucket_of_another_account_is_named_with_the_way_out() -> None:
    call = Recorded(head_bucket=PermissionRefusedError("AWS does not allow s3:HeadBucket (403)"))
    bucket = S3Bucket(call, region="us-west-2", account="123456789012")
    with pytest.raises(PermissionRefusedError, match=r"taken by another account.*\n*.*--project-name"):
        bucket.found(PROPERTIES["SourceBucket"])


def test_every_change_of_a_bucket_names_the_owner_it_expects() -> None:
    call = Recorded()
    kind = S3Bucket(call, region="us-west-2", account="123456789012")
    kind.create(PROPERTIES["SourceBucket"])
    puts = [given for operation, given in call.made if operation.startswith("put_")]
    assert len(puts) == 5
    assert {given["ExpectedBucketOwner"] for given in puts} == {"123456789012"}


@pytest.mark.parametrize("name", ["SourceBucket", "ArtifactBucket"])
def test_the_first_region_takes_no_location(name: str) -> None:
    make: Callable[[str], Recorded] = lambda region: _made(region, name)  # noqa: E731
    assert "CreateBucketConfiguration" not in make("us-east-1").made[0][1]
    assert make("eu-west-1").made[0][1]["CreateBucketConfiguration"] == {"LocationConstraint": "eu-west-1"}


def _made(region: str, name: str) -> Recorded:
    call = Recorded()
    S3Bucket(call, region=region, account="123456789012").create(PROPERTIES[name])
    return call
