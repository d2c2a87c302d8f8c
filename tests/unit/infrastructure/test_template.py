"""The template by independent judges, wrong parameters by rule, and policies of least privilege."""

import ast
import json
import re
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.unit.infrastructure.template_reader import (
    ACCOUNT,
    FOLDER,
    REGION,
    SUBJECT,
    TEMPLATE,
    ResolvedTemplate,
    template,
)

from trainyard.cluster.cluster_query import needed_permissions
from trainyard.cluster.needed_apis import ServedKind
from trainyard.commands.init_aws import flag_of
from trainyard.jobs.job_spec import JobSpec
from trainyard.jobs.kinds import KINDS

TOOLS = Path(sys.executable).parent


def test_cfn_lint_finds_nothing() -> None:
    line: list[str | Path] = [TOOLS / "cfn-lint", "--non-zero-exit-code", "informational", TEMPLATE]
    done = subprocess.run(line, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr


def test_shellcheck_finds_nothing_in_the_script() -> None:
    line = [TOOLS / "shellcheck", FOLDER / "setup-codebuild.sh"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


def test_the_template_is_short_enough_to_be_sent_with_a_request() -> None:
    assert len(TEMPLATE.read_bytes()) <= 51_200


def test_what_holds_data_survives_the_stack_and_nothing_else() -> None:
    kept = {name for name, each in template()["Resources"].items() if each.get("DeletionPolicy") == "Retain"}
    buckets = {"SourceBucket", "SourceBucketPolicy", "ArtifactBucket", "ArtifactBucketPolicy"}
    assert kept == {"ImageRepository", "CacheRepository", "GitHubProvider", *buckets}
    replaced = {name for name, each in template()["Resources"].items() if "UpdateReplacePolicy" in each}
    assert replaced == kept


def test_every_parameter_has_a_flag_and_a_variable_of_terraform() -> None:
    module = (FOLDER / "terraform" / "main.tf").read_text()
    variables = re.findall(r'^variable "(\w+)"', module, flags=re.M)
    renamed = {"github": "subject", "no-provider": "create-provider"}
    assert variables == [
        renamed.get(flag, flag).replace("-", "_") for flag in map(flag_of, template()["Parameters"])
    ]
    assert re.findall(r"^    ([A-Z]\w+) += ", module, flags=re.M) == list(template()["Parameters"])


def test_the_lifecycle_of_images_is_json_with_rules_in_order() -> None:
    for name, count in (("ImageRepository", 2), ("CacheRepository", 1)):
        text = template()["Resources"][name]["Properties"]["LifecyclePolicy"]["LifecyclePolicyText"]
        assert [rule["rulePriority"] for rule in json.loads(text)["rules"]] == [1, 2][:count]


def test_the_pattern_of_a_parameter_refuses_what_a_name_or_a_trust_must_not_hold() -> None:
    """CloudFormation applies the patterns; moto does not. `$` of Python also matches before a line break."""
    wrong = {
        "Project": ("Lab", "lab_1", "-lab", "a" * 26, ""),
        "Repository": ("Lab", "lab/", "a", "a" * 201, "lab--"),
        "ComputeType": ("BUILD_GENERAL1_SMALL", "large"),
        "Subjects": ("repo:me/lab:*", "repo:me/*:environment:training", "me/lab"),
        "Cluster": ("two words",),
        "WebhookRepository": ("me",),
        "BaseRepositories": ("nvcr.io/nvidia/pytorch",),
        "KmsKey": ("alias/lab",),
        "Subnets": ("subnet-1,,subnet-2",),
    }
    right = {
        "Project": ("lab", "a" * 25),
        "Repository": ("team/lab",),
        "Subjects": (SUBJECT, "repo:me@1/lab@2:ref:refs/heads/main", ""),
        "Cluster": ("gpus", ""),
        "WebhookRepository": ("me/lab", ""),
        "Subnets": ("subnet-0a1b2c3d,subnet-1a1b2c3d",),
    }
    for fits, table in ((False, wrong), (True, right)):
        for name, values in table.items():
            pattern = template()["Parameters"][name]["AllowedPattern"]
            for value in values:
                assert bool(re.search(pattern, value, re.ASCII)) is fits, (name, value)


def test_the_longest_project_fits_the_name_of_a_bucket_in_the_region_with_the_longest_name() -> None:
    found = ResolvedTemplate({"Project": "a" * 25}).name_of("ArtifactBucket")
    assert len(found.replace(REGION, "ap-southeast-2")) == 63


ROOT = Path(__file__).resolve().parents[3]
GATEWAYS = ROOT / "src" / "trainyard" / "gateways"
RUNBOOK = ROOT / "docs" / "runbooks" / "permissions.md"
ROLES = {"BuildRole": "build", "GitHubRole": "github"}
DEPLOYERS = "trainyard-deployers"
OURS = "our scripts"
SERVICES = ("codebuild:", "ecr:", "logs:")
"""Services of which our code calls only what the two roles may do."""
ACTIONS_OF_OPERATIONS = {"s3:HeadObject": "s3:GetObject", "s3:ListObjectsV2": "s3:ListBucket"}
TAKES_NO_RESOURCE = {"ecr:GetAuthorizationToken"}
KEY = f"arn:aws:kms:{REGION}:{ACCOUNT}:key/trainyard"
NETWORK = {"Vpc": "vpc-1", "Subnets": "subnet-1,subnet-2", "SecurityGroups": "sg-1"}
EVERYTHING = {"KmsKey": KEY, **NETWORK}
NOTHING = {"KmsKey": "", "Vpc": ""}


def resolved(**given: str) -> ResolvedTemplate:
    return ResolvedTemplate({"Subjects": SUBJECT, "Cluster": "gpus", **EVERYTHING, **given})


def statements(name: str) -> list[dict[str, Any]]:
    return resolved().statements(name)


@dataclass(frozen=True)
class Grant:
    """A row of the runbook's table of the two roles."""

    sid: str
    role: str
    actions: tuple[str, ...]
    caller: str


def grants() -> list[Grant]:
    rows = re.findall(
        r"^\| `([A-Z]\w+)` \| (build|github) \| (.*?) \| (.*?) \|", RUNBOOK.read_text(), flags=re.M
    )
    return [
        Grant(sid, role, tuple(re.findall("`([^`]+)`", actions)), caller)
        for sid, role, actions, caller in rows
    ]


def granted() -> set[str]:
    return {action for name in ROLES for each in statements(name) for action in each["Action"]}


def test_no_action_has_a_wildcard_and_a_resource_is_named_wherever_aws_takes_one() -> None:
    for name in ROLES:
        actions = [action for statement in statements(name) for action in statement["Action"]]
        assert [action for action in actions if "*" in action or ":" not in action] == []
        assert len(actions) == len(set(actions)), "an action is granted twice"
        for statement in statements(name):
            free = set(statement["Action"]) <= TAKES_NO_RESOURCE or statement["Sid"] == "FindTheNetwork"
            named = ["trainyard", ":cluster/gpus", *(["*"] if free else [])]
            if statement["Sid"] == "JoinTheNetwork":
                named = [":network-interface/*"]
                assert "ec2:AuthorizedService" in str(statement)
            assert [one for one in statement["Resource"] if not any(part in one for part in named)] == []
            everything = r"arn:aws:(?!ec2)[a-z0-9]+:[^:]*:[^:]*:\*"
            assert [one for one in statement["Resource"] if re.match(everything, one)] == []


def test_nothing_that_changes_the_set_up_is_granted() -> None:
    """Roles, projects and repositories are made by people; what a build pushes cannot be deleted by it."""
    made = "Create(Project|Repository|Bucket|Role)|Update(Project|Role)|Put(Bucket|Role)|Pass"
    verbs = f"Delete(?!NetworkInterface)|{made}"
    assert [action for action in granted() if re.search(f":({verbs})", action)] == []
    services = ("iam:", "sts:", "cloudformation:")
    assert [action for action in granted() if action.startswith(services)] == []
    plain = [each["Sid"] for role in ROLES for each in resolved(**NOTHING).statements(role)]
    assert not {"UseTheKey", "EncryptTheSource", "FindTheNetwork", "JoinTheNetwork"} & set(plain)


def test_each_role_is_for_this_project_or_for_named_jobs_only() -> None:
    issuer = "token.actions.githubusercontent.com"
    project = {"aws:SourceArn": f"arn:aws:codebuild:{REGION}:{ACCOUNT}:project/trainyard"}
    jobs = {f"{issuer}:aud": "sts.amazonaws.com", f"{issuer}:sub": [SUBJECT]}
    for role, principal, condition in (
        (
            "BuildRole",
            {"Service": "codebuild.amazonaws.com"},
            {"StringEquals": {"aws:SourceAccount": ACCOUNT}, "ArnLike": project},
        ),
        (
            "GitHubRole",
            {"Federated": f"arn:aws:iam::{ACCOUNT}:oidc-provider/{issuer}"},
            {"StringEquals": jobs},
        ),
    ):
        (trust,) = resolved().properties(role)["AssumeRolePolicyDocument"]["Statement"]
        assert (trust["Principal"], trust["Condition"]) == (principal, condition)
    entry = resolved().properties("AccessEntry")
    assert entry["KubernetesGroups"] == [DEPLOYERS] and "AccessPolicies" not in entry
    assert entry["PrincipalArn"] == f"arn:aws:iam::{ACCOUNT}:role/trainyard-github"
    sids = [each["Sid"] for each in resolved(Cluster="").statements("GitHubRole")]
    assert "FindTheCluster" not in sids and "StartBuilds" in sids


def test_the_project_that_ignores_overrides_is_started_by_pushes_alone() -> None:
    """StartBuild takes a buildspec and a source, so the role that may call it may do what builds may."""
    found = resolved(RoleStartsBuilds="false", WebhookRepository="me/lab")
    actions = [action for each in found.statements("GitHubRole") for action in each["Action"]]
    assert "codebuild:StartBuild" not in actions and "codebuild:BatchGetBuilds" in actions
    builds = found.properties("Builds")
    assert builds["Triggers"]["Webhook"] is True and builds["Source"]["Type"] == "GITHUB"


def test_a_key_a_network_and_an_expiry_reach_every_resource_they_are_for() -> None:
    found = resolved(ArtifactDays="30")
    bucket = found.properties("ArtifactBucket")
    assert {"Id": "expire-artifacts", "Status": "Enabled", "Prefix": "builds/", "ExpirationInDays": "30"} in (
        bucket["LifecycleConfiguration"]["Rules"]
    )
    for name in ("SourceBucket", "ArtifactBucket"):
        assert KEY in str(found.properties(name)["BucketEncryption"])
    for name in ("ImageRepository", "CacheRepository"):
        assert found.properties(name)["EncryptionConfiguration"] == {"EncryptionType": "KMS", "KmsKey": KEY}
    builds = found.properties("Builds")
    assert (found.properties("LogGroup")["KmsKeyId"], builds["EncryptionKey"]) == (KEY, KEY)
    assert builds["VpcConfig"] == {
        "VpcId": "vpc-1",
        "Subnets": ["subnet-1", "subnet-2"],
        "SecurityGroupIds": ["sg-1"],
    }
    plain = resolved(**NOTHING)
    assert "VpcConfig" not in plain.properties("Builds") and "EncryptionKey" not in plain.properties("Builds")
    rules = plain.properties("ArtifactBucket")["LifecycleConfiguration"]["Rules"]
    assert [rule["Id"] for rule in rules] == ["abort-incomplete-uploads", "expire-old-versions"]


def test_base_images_are_pulled_from_the_repositories_that_are_named_only() -> None:
    arn = "arn:aws:ecr:us-west-2:763104351884:repository/pytorch-training"
    assert "PullBaseImages" not in [each["Sid"] for each in resolved().statements("BuildRole")]
    other = arn.replace("pytorch", "vllm")
    named = resolved(BaseRepositories=f"{arn},{other}").statements("BuildRole")
    (bases,) = [each for each in named if each["Sid"] == "PullBaseImages"]
    assert bases["Resource"] == [arn, other]
    assert bases["Action"] == ["ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"]


@pytest.mark.parametrize("name", ["SourceBucket", "ArtifactBucket"])
def test_a_bucket_is_private_encrypted_versioned_and_for_tls_only(name: str) -> None:
    plain = resolved(**NOTHING)
    bucket, policy = plain.properties(name), plain.properties(f"{name}Policy")
    assert set(bucket["PublicAccessBlockConfiguration"].values()) == {True}
    assert len(bucket["PublicAccessBlockConfiguration"]) == 4
    assert bucket["VersioningConfiguration"] == {"Status": "Enabled"}
    assert "AES256" in str(bucket["BucketEncryption"])
    assert bucket["OwnershipControls"]["Rules"] == [{"ObjectOwnership": "BucketOwnerEnforced"}]
    assert policy["Bucket"] == bucket["BucketName"]
    (statement,) = policy["PolicyDocument"]["Statement"]
    arn = f"arn:aws:s3:::{bucket['BucketName']}"
    assert statement == {
        "Sid": "TlsOnly",
        "Effect": "Deny",
        "Principal": "*",
        "Action": "s3:*",
        "Resource": [arn, f"{arn}/*"],
        "Condition": {"Bool": {"aws:SecureTransport": "false"}},
    }


@cache
def calls_of_our_code() -> set[str]:
    """The IAM actions of every AWS operation that a gateway names. The set-up itself is not a gateway.

    A module that names a service, in quotes or in its path, is searched for texts and names of operations,
    because modules call clients in different ways.
    """
    from botocore import xform_name
    from botocore.session import get_session

    session = get_session()
    operations = {
        service: {
            xform_name(name): f"{service}:{name}"
            for name in session.get_service_model(service).operation_names
        }
        for service in ("codebuild", "ecr", "logs", "eks", "s3")
    }
    found: set[str] = set()
    for path in GATEWAYS.rglob("*.py"):
        tree = ast.parse(path.read_text())
        words = {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
        names = {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
        for service in (words | set(path.parts)) & operations.keys():
            found |= {operations[service][name] for name in (words | names) & operations[service].keys()}
    return {ACTIONS_OF_OPERATIONS.get(action, action) for action in found}


def test_what_is_granted_to_our_scripts_is_what_they_call() -> None:
    ours = {action for grant in grants() if grant.caller == OURS for action in grant.actions}
    assert ours - calls_of_our_code() == set(), "granted, and nothing in gateways/ calls it"
    called = {action for action in calls_of_our_code() if action.startswith(SERVICES)}
    assert called - granted() == set(), "called, and not granted"


@pytest.mark.parametrize("name", ROLES)
def test_the_runbook_lists_every_action_with_its_caller(name: str) -> None:
    """The table of the runbook and the policies of the template are the same, statement by statement."""
    listed = {grant.sid: grant for grant in grants() if grant.role == ROLES[name]}
    found = {each["Sid"]: tuple(each["Action"]) for each in statements(name)}
    assert {sid: grant.actions for sid, grant in listed.items()} == found
    callers = {OURS, "docker and buildx", "docker, buildx and oras", "CodeBuild itself"}
    assert {grant.caller for grant in listed.values()} <= callers


def rules_in_the_runbook(kind: str) -> list[dict[str, Any]]:
    """The rules of the Role or ClusterRole that the runbook gives to the group of GitHub's role."""
    texts = re.findall(r"```yaml\n(.*?)```", RUNBOOK.read_text(), re.S)
    bodies = [body for text in texts for body in yaml.safe_load_all(text) if body]
    assert {b["subjects"][0]["name"] for b in bodies if b["kind"].endswith("Binding")} == {DEPLOYERS}
    found: list[dict[str, Any]] = next(body["rules"] for body in bodies if body["kind"] == kind)
    return found


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_the_roles_of_the_runbook_allow_what_a_deployment_needs(kind: ServedKind) -> None:
    job = JobSpec(namespace="training", queue="gpus", claim="fsx")
    for needed in needed_permissions(job, kind):
        rules = rules_in_the_runbook("Role" if needed.namespace else "ClusterRole")
        assert any(
            needed.group in rule["apiGroups"]
            and needed.resource in rule["resources"]
            and needed.verb in rule["verbs"]
            for rule in rules
        ), needed
    for rule in [*rules_in_the_runbook("Role"), *rules_in_the_runbook("ClusterRole")]:
        assert "*" not in str(rule), "no wildcard"
