"""Secrets and logins of a build: each form × each place, and no value is repeated or sent."""

import pytest
from tests.cases import each_case

from trainyard.errors import ConfigError
from trainyard.image.building.build_secrets import (
    BuildSecret,
    build_variables_of_secrets,
    login_of,
    mounted_secrets,
    parse_login,
    parse_secret,
    require_mounted,
)

ARN = "arn:aws:secretsmanager:us-west-2:123456789012:secret:trainyard/pip-AbCdEf"
PLACES = {"src": "/run/token", "env": "PIP_TOKEN", "secretsmanager": "trainyard/pip"}
VALUE = "ghp_0123456789abcdefghijABCDEFGHIJ012345"
"""A value that somebody may give by mistake instead of its place."""
WRONG = (
    *("", "pip", "id=", "id=pip,src=", VALUE, f"id=a b,src={VALUE}", f"id=pip,value={VALUE}"),
    *(f"id=pip,env={VALUE}-", f"id=pip,src=/a,env={VALUE}", f"id=pip,secretsmanager={VALUE} {VALUE}"),
)
WRONG_LOGINS = ("", "nvcr.io", "nvcr.io=", f"nvcr.io={VALUE}", "nv/cr=env:A", f"nvcr.io=user:{VALUE}")


@each_case("kind", PLACES)
@each_case("form", ["id={id},{kind}={place}", "type=file,id={id},{kind}={place}", "{kind}={place},id={id}"])
def test_a_secret_has_an_id_and_one_place(kind: str, form: str) -> None:
    text = form.format(id="pip", kind=kind, place=PLACES[kind])
    assert parse_secret(text) == BuildSecret("pip", kind, PLACES[kind])
    assert parse_secret("id=pip,source=/a") == BuildSecret("pip", "src", "/a")
    assert parse_secret("id=PIP_TOKEN") == BuildSecret("PIP_TOKEN", "env", "PIP_TOKEN")
    assert parse_secret(f"id=pip,secretsmanager={ARN}").place == ARN


@each_case("text", WRONG)
def test_another_form_is_refused_without_the_text_that_may_be_a_secret(text: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        parse_secret(text)
    assert VALUE not in str(refusal.value)
    assert "id=ID,src=FILE" in str(refusal.value)


def test_a_login_names_where_its_value_is() -> None:
    assert parse_login("nvcr.io=env:NGC") == BuildSecret("nvcr.io", "env", "NGC")
    assert parse_login(f"127.0.0.1:5000=secretsmanager:{ARN}").place == ARN
    for text in WRONG_LOGINS:
        with pytest.raises(ConfigError) as refusal:
            parse_login(text)
        assert VALUE not in str(refusal.value)
        assert "HOST=env:VARIABLE" in str(refusal.value) and "id=ID" not in str(refusal.value)


def test_a_login_is_a_pair_or_json() -> None:
    assert login_of("nvcr.io", "me:a:b") == ("me", "a:b")
    in_json = '{"username": "$oauthtoken", "password": "nvapi"}'
    assert login_of("nvcr.io", in_json) == ("$oauthtoken", "nvapi")
    for value in (VALUE, '{"username": "me"}', "[]", ""):
        with pytest.raises(ConfigError) as refusal:
            login_of("nvcr.io", value)
        assert not value or value not in str(refusal.value)


DOCKERFILE = """
FROM a
RUN --mount=type=secret,id=pip,required=true --mount=type=cache,target=/c pip install x
RUN --mount=type=secret,target=/run/secrets/hf cat /run/secrets/hf
RUN --mount=type=bind,target=/s true
"""


def test_ids_are_those_that_the_dockerfile_mounts() -> None:
    assert mounted_secrets(DOCKERFILE) == {"pip": True, "hf": False}
    pip, other = parse_secret("id=pip"), parse_secret("id=other")
    require_mounted([pip], DOCKERFILE, "Dockerfile")
    for secrets, named in (
        ([], "requires the secret pip"),
        ([pip, other], "mounted: pip, hf"),
        ([pip, pip], "twice"),
    ):
        with pytest.raises(ConfigError, match=named):
            require_mounted(secrets, DOCKERFILE, "Dockerfile")


@pytest.mark.parametrize("login", [True, False])
def test_the_build_in_aws_gets_names_that_its_role_can_read_and_never_values(login: bool) -> None:
    def variables(kind: str, place: str, project: str = "trainyard") -> tuple[dict[str, str], dict[str, str]]:
        one = BuildSecret("nvcr.io" if login else "pip", kind, place)
        return build_variables_of_secrets([] if login else [one], [one] if login else [], project=project)

    for place in (PLACES["secretsmanager"], ARN, "trainyard/pip:token"):
        plain, named = variables("secretsmanager", place)
        if login:
            assert plain == {"REGISTRY_LOGINS": "nvcr.io=env:REGISTRY_LOGIN_1"}
            assert parse_login(plain["REGISTRY_LOGINS"]).place in named
        else:
            assert plain == {"BUILD_SECRETS": "id=pip,env=BUILD_SECRET_1"}
            assert parse_secret(plain["BUILD_SECRETS"]).place in named
        assert list(named.values()) == [place]
        with pytest.raises(ConfigError, match="names begin with lab/"):
            variables("secretsmanager", place, "lab")
    for kind in ("src", "env"):
        with pytest.raises(ConfigError, match="a name that begins with trainyard/"):
            variables(kind, PLACES[kind])
