"""Secrets of a build: each form × each place, and no value is repeated or sent."""

import pytest
from tests.cases import each_case

from trainyard.errors import ConfigError
from trainyard.image.building.build_secrets import (
    BuildSecret,
    build_variables_of_secrets,
    parse_secret,
    require_readable,
)

ARN = "arn:aws:secretsmanager:us-west-2:123456789012:secret:trainyard/pip-AbCdEf"
PLACES = {"src": "/run/token", "env": "PIP_TOKEN", "secretsmanager": "trainyard/pip"}
VALUE = "ghp_0123456789abcdefghijABCDEFGHIJ012345"
"""A value that somebody may give by mistake instead of its place."""
WRONG = (
    *("", "pip", "id=", "id=pip,src=", VALUE, f"id=a b,src={VALUE}", f"id=pip,value={VALUE}"),
    *(f"id=pip,env={VALUE}-", f"id=pip,src=/a,env={VALUE}", f"id=pip,secretsmanager={VALUE} {VALUE}"),
)


def test_a_secret_has_an_id_and_one_place() -> None:
    for kind, place in PLACES.items():
        for form in ("id=pip,{}={}", "type=file,id=pip,{}={}", "{}={},id=pip"):
            assert parse_secret(form.format(kind, place)) == BuildSecret("pip", kind, place)
    assert parse_secret("id=pip,source=/a") == BuildSecret("pip", "src", "/a")
    assert parse_secret("id=PIP_TOKEN") == BuildSecret("PIP_TOKEN", "env", "PIP_TOKEN")
    assert parse_secret(f"id=pip,secretsmanager={ARN}").place == ARN


@each_case("text", WRONG)
def test_another_form_is_refused_without_the_text_that_may_be_a_secret(text: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        parse_secret(text)
    assert VALUE not in str(refusal.value)
    assert "id=ID,src=FILE" in str(refusal.value)


def test_the_build_in_aws_gets_names_that_its_role_can_read_and_never_values() -> None:
    def variables(kind: str, place: str, project: str = "trainyard") -> tuple[dict[str, str], dict[str, str]]:
        return build_variables_of_secrets([BuildSecret("pip", kind, place)], project=project)

    for place in (PLACES["secretsmanager"], ARN, "trainyard/pip:token"):
        plain, named = variables("secretsmanager", place)
        assert plain == {"BUILD_SECRETS": "id=pip,env=BUILD_SECRET_1"}
        assert named == {parse_secret(plain["BUILD_SECRETS"]).place: place}
        with pytest.raises(ConfigError, match="names begin with lab/"):
            variables("secretsmanager", place, "lab")
    for kind in ("src", "env"):
        with pytest.raises(ConfigError, match="a name that begins with trainyard/"):
            variables(kind, PLACES[kind])


def test_a_builder_on_this_machine_reads_files_and_variables_that_are_set() -> None:
    require_readable([BuildSecret("pip", "src", "/a"), BuildSecret("hf", "env", "HF")], {"HF": ""})
    for secret, said in (
        (BuildSecret("pip", "secretsmanager", "trainyard/pip"), "only a build in AWS"),
        (BuildSecret("pip", "env", "HF"), "the variable HF is not set"),
    ):
        with pytest.raises(ConfigError, match=said):
            require_readable([secret], {})
