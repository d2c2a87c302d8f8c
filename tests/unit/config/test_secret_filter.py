"""The filter of all records: what it replaces in a text and in data, and what it keeps."""

import hashlib
import json
from collections.abc import Callable
from functools import partial

import pytest
from tests.cases import each_case
from tests.unit.config.secret_samples import BARE_PLACES, FORMS, PLACES, private_key

from trainyard.config.secret_filter import SecretFilter, find_secrets, restore_secrets
from trainyard.errors import ConfigError

PASSWORD = "correct-7-horse"


def masked(text: str, known: SecretFilter | None = None) -> str:
    return (known or SecretFilter()).mask_bytes(text.encode()).decode()


def digits(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()[:8]


def test_a_token_is_replaced_by_its_digits_in_every_place_and_nothing_else_changes() -> None:
    wrong = []
    places: dict[str, Callable[[str, str], str]]
    places = {**PLACES, **{name: partial(_bare, write) for name, write in BARE_PLACES.items()}}
    tokens = {form: make(usual, 5).removeprefix("https://") for form, (_, usual, make) in FORMS.items()}
    for form, token in {**tokens, "a private key": private_key(body=300).strip()}.items():
        for place, write in places.items():
            text = write("A_THING", token)
            found = masked(text)
            if token in text and found != text.replace(token, f"***{digits(token)}"):
                wrong.append((form, place, found[-300:]))
            if (token.splitlines()[-2:-1] and token.splitlines()[-2] in found) or masked(found) != found:
                wrong.append((form, place, "not masked, or not the same when masked again"))
    assert wrong == []


def _bare(write: Callable[[str], str], _name: str, value: str) -> str:
    return write(value)


# Python's setdefault and the manifest of a pod have more than `=` or `:` between name and value.
NO_ASSIGNMENT = ("Python setdefault", "YAML of Kubernetes", "Dockerfile ENV, old", "YAML, quoted")


def test_a_password_is_replaced_after_the_name_of_a_secret_without_its_digits() -> None:
    wrong = []
    for name in ("MY_API_KEY", "DB_PASSWORD", "CLIENT_SECRET", "HF_TOKEN", "SLACK_WEBHOOK"):
        for place, write in PLACES.items():
            found = masked(write(name, PASSWORD))
            if place not in NO_ASSIGNMENT and found != write(name, "***"):
                wrong.append((name, place, found))
    assert wrong == []


@each_case(
    ("text", "expected"),
    [
        ("postgres://user:pw@host/db", "postgres://user:***@host/db"),
        ("https://u:p@ss%2Fword@host/a@b", "https://u:***@host/a@b"),
        ("redis://:only-password@h", "redis://:***@h"),
        ("--api-key eight888", "--api-key ***"),
        ("--api-key seven77", "--api-key seven77"),
        ("MY_API_KEY=eight888", "MY_API_KEY=***"),
        ("MY_API_KEY=seven77", "MY_API_KEY=seven77"),
        ("https://h/x?a=1&access_token=eight888&b=2", "https://h/x?a=1&access_token=***&b=2"),
        ('{"password": "with blanks in it"}', '{"password": "***"}'),
        ('["--db-password", "eight888"]', '["--db-password", "***"]'),
    ],
)
def test_what_is_replaced(text: str, expected: str) -> None:
    assert masked(text) == expected
    assert masked(expected) == expected


@pytest.mark.parametrize(
    "text",
    [
        "step: 10 max_tokens: 100000000 tokens=123456789 num_tokens: 12345678",
        "tokenizer=mistralai/Mistral pad_token: <|endoftext|> keyword=something",
        "postgres://user:$PASSWORD@host postgres://user@host:5432/db@x http://host:8080/a",
        "MY_API_KEY=$THE_API_KEY MY_API_KEY=${THE_KEY:-none} DEPLOY_KEY=/run/secrets/deploy_key",
        "git@github.com:owner/repository.git sha256:0123456789abcdef0123456789abcdef01234567",
        "{'loss': 2.5, 'grad_norm': 1.0, 'learning_rate': 1e-05}",
        "a *** b, **bold** and ***",
    ],
)
def test_what_is_kept(text: str) -> None:
    assert masked(text) == text


def test_the_value_of_a_secret_variable_is_replaced_in_every_way_to_write_it() -> None:
    value = 'two words, "quotes" & a\nsecond line'
    environment = {"DB_PASSWORD": value, "SHORT_TOKEN": "1234567", "OTHER": "harmless"}
    known = SecretFilter.of({"environment": environment})
    for text in (
        f"a {value} b",
        json.dumps([value]),
        repr([value]),
        "a second line b",
        'x two words, "quotes" & a',
    ):
        assert "quotes" not in masked(text, known) and "second" not in masked(text, known)
    assert masked("1234567 harmless", known) == "1234567 harmless"


def test_a_log_is_cut_between_lines_and_never_in_a_private_key() -> None:
    key, end = private_key(body=600).encode(), SecretFilter().end_of_lines
    log = b"step 1\n" + key + b"step 2\nste"
    for length in range(len(log)):
        cut = end(log[:length])
        assert cut <= len(b"step 1\n") or cut >= len(b"step 1\n" + key), length
    assert end(log) == len(log) - 3


CONFIG = {
    "program": {
        "command": [
            "python",
            "a.py",
            "--auth",
            "hf_" + "aB3" * 12,
            "--db-password",
            PASSWORD,
            f"--url=pg://u:{PASSWORD}@h",
        ],
        "environment": {"MY_API_KEY": PASSWORD, "SEED": "12345678"},
    },
    "cluster": {"secret": "name-of-a-secret"},
}


def test_a_configuration_gets_its_secrets_again_only_from_where_they_may_be() -> None:
    recorded = SecretFilter().mask_values(CONFIG)
    assert PASSWORD not in json.dumps(recorded)
    assert [recorded["cluster"], recorded["program"]["environment"]["SEED"]] == [
        CONFIG["cluster"],
        "12345678",
    ]
    places = [found.place.removeprefix("program.") for found in find_secrets(CONFIG)]
    assert places == [
        "command: --auth",
        "command: --db-password",
        "command: --url",
        "environment: MY_API_KEY",
    ]
    variables = {
        "X": "hf_" + "aB3" * 12,
        "DB_PASSWORD": PASSWORD,
        "URL": f"pg://u:{PASSWORD}@h",
        "MY_API_KEY": PASSWORD,
    }
    assert restore_secrets(recorded, variables) == CONFIG
    shell = find_secrets({"program": {"command": ["sh", "-c", f"python a.py --api-key {PASSWORD}"]}})
    assert [found.variable for found in shell] == [""], "no variable C is suggested"
    for name, place in zip(variables, places, strict=True):
        with pytest.raises(ConfigError, match=f"program.{place}"):
            restore_secrets(recorded, {other: value for other, value in variables.items() if other != name})
    with pytest.raises(ConfigError, match="--auth"):
        restore_secrets(recorded, variables | {"X": "hf_" + "aB4" * 12})
