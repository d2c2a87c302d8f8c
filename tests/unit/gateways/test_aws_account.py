"""AWS region and profile that are missing or wrong: the error names them, and what to do."""

import pytest

from trainyard.errors import ConfigError
from trainyard.gateways.aws_refusals import AwsAccount


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")


@pytest.mark.parametrize("region", ["", "us west", "-us", "us_west_2", "a" * 64])
def test_a_region_that_is_none_is_refused_with_the_option_that_names_one(region: str) -> None:
    with pytest.raises(ConfigError, match="--region, such as") as caught:
        AwsAccount(region)
    assert region in str(caught.value)
    assert ".;" not in str(caught.value)


def test_a_missing_profile_is_named_and_not_called_a_region(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nope")
    with pytest.raises(ConfigError, match=r"nope.*AWS_PROFILE") as caught:
        AwsAccount("us-west-2")
    assert "--region" not in str(caught.value)
