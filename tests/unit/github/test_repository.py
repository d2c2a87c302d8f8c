"""The name of a repository in every form in which git and people write it."""

import pytest
from tests.cases import each_case

from trainyard.errors import ConfigError
from trainyard.github.repository import parse_repository, repository_of_remote


@each_case(
    ("url", "host"),
    [
        ("https://github.com/me/lab", "github.com"),
        ("https://github.com/me/lab.git", "github.com"),
        ("https://github.com/me/lab/", "github.com"),
        ("https://me:token@github.com/me/lab.git", "github.com"),
        ("https://git.example.org:8443/me/lab.git", "git.example.org:8443"),
        ("git@github.com:me/lab.git", "github.com"),
        ("github.com:me/lab", "github.com"),
        ("ssh://git@github.com/me/lab.git", "github.com"),
        ("ssh://git@ssh.github.com:443/me/lab.git", "github.com"),
        ("ssh://git@git.example.org:2222/me/lab", "git.example.org"),
        ("git@Git.Example.org:me/lab.git", "git.example.org"),
    ],
)
def test_the_url_of_a_remote_gives_host_and_repository(url: str, host: str) -> None:
    assert repository_of_remote(url) == (host, "me/lab")


@pytest.mark.parametrize(
    "url", ["", "/srv/lab.git", "file:///srv/me/lab", "https://github.com/me", "../lab", "C:\\x"]
)
def test_a_remote_that_is_not_on_github_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="--repository OWNER/REPO"):
        repository_of_remote(url)


@pytest.mark.parametrize(
    ("text", "host", "found"),
    [
        ("me/lab", "", ("github.com", "me/lab")),
        ("me/lab", "git.example.org", ("git.example.org", "me/lab")),
        ("git.example.org/me/lab", "other", ("git.example.org", "me/lab")),
        ("localhost:8443/me/lab", "", ("localhost:8443", "me/lab")),
    ],
)
def test_a_name_may_have_a_host(text: str, host: str, found: tuple[str, str]) -> None:
    assert parse_repository(text, host=host) == found


@pytest.mark.parametrize(
    "text", ["lab", "me/", "a/b/c/d", "me/lab?x", "https://github.com/me/lab", "me/l ab"]
)
def test_an_invalid_name_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not OWNER/REPO"):
        parse_repository(text)
