"""Secrets by rule: each form × length × place is found, each harmless name and value × place is not."""

import hashlib
import json
import uuid
from collections.abc import Callable

import pytest
from tests.cases import each_case
from tests.unit.config.secret_samples import (
    ALNUM,
    BARE_PLACES,
    BASE64,
    FORMS,
    HEX,
    LONG,
    NAMED,
    PLACES,
    URL,
    private_key,
    random_text,
    tokens,
)

from trainyard.config.secret_forms import (
    _table,
    baked_secret_kind,
    is_build_variable,
    is_secret_name,
    secret_kind,
    secret_value_kind,
)

TOKENS = [pytest.param(token, id=f"{name}-{length}") for name, length, token in tokens()]


@each_case("token", TOKENS)
def test_a_token_is_found_in_every_place(token: str) -> None:
    texts = {place: write("A_THING", token) for place, write in PLACES.items()}
    texts |= {place: write(token) for place, write in BARE_PLACES.items()}
    assert [place for place, text in texts.items() if not secret_value_kind(text.encode())] == []
    assert secret_kind("ANYTHING", token)
    kind = secret_value_kind(token.encode())
    assert {secret_value_kind(text.encode()) for text in texts.values()} == {kind}


@each_case("name", FORMS)
def test_a_token_that_is_only_begun_is_none(name: str) -> None:
    """Documents and code name prefixes; ten letters after one are no token."""
    shortest, _, make = FORMS[name]
    token = make(shortest, 3)
    for length in range(1, min(19, shortest)):
        assert secret_value_kind(token[:length].encode()) is None


@each_case("name", FORMS)
def test_a_token_in_the_middle_of_a_word_is_none(name: str) -> None:
    if name.startswith("Slack w") or name == "Slack rotated":
        return  # an address is one, whatever precedes it; a rotated token contains another one
    _, usual, make = FORMS[name]
    assert secret_value_kind(f"x9{make(usual, 1)}".encode()) is None


@each_case("name", FORMS)
@each_case("filler", ["x", "X"])
def test_a_placeholder_is_none(name: str, filler: str) -> None:
    shortest, _, make = FORMS[name]
    start = len(make(shortest, 1)) - 16
    assert secret_value_kind((make(shortest, 1)[:start] + filler * 16).encode()) is None


@each_case("name", NAMED)
@each_case("place", PLACES)
def test_a_value_that_only_its_name_gives_away_is_found(name: str, place: str) -> None:
    alphabet, usual = NAMED[name]
    for length in (usual, *(each for each in LONG if each > usual)):
        for seed in range(2):
            value = random_text(alphabet, length, seed)
            assert secret_value_kind(PLACES[place](name, value).encode()), length
            assert secret_value_kind(PLACES[place]("A_THING", value).encode()) is None


AWS, WANDB = ("a secret key of AWS", BASE64), ("a key of W&B", HEX)


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("aws configure set aws_secret_access_key {0}", AWS),
        ('{{"Credentials": {{"SecretAccessKey": "{0}", "Expiration": 1}}}}', AWS),
        ("const a = {{ secretAccessKey: '{0}' }}", AWS),
        ('boto3.client("s3", aws_secret_access_key="{0}")', AWS),
        ("RUN wandb login {0}", WANDB),
        ("wandb login --relogin {0}", WANDB),
        ('wandb.login(key="{0}")', WANDB),
        ("WANDB_API_KEY=local-{0}", WANDB),
    ],
)
def test_a_key_without_a_form_is_found_in_the_words_of_its_tools(line: str, key: tuple[str, str]) -> None:
    assert secret_value_kind(line.format(random_text(key[1], 40, 2)).encode()) == key[0]


KEY_PLACES: dict[str, Callable[[str], str]] = {
    "file": lambda key: key,
    "after a blank line": lambda key: "\n" + key,
    "Windows": lambda key: key.replace("\n", "\r\n"),
    "Python": lambda key: f'KEY = """{key}"""\n',
    "Python, lines": lambda key: (
        "KEY = (\n" + "\n".join(f'    b"{line}\\n"' for line in key.splitlines()) + ")"
    ),
    "JSON": lambda key: json.dumps({"type": "service_account", "private_key": key}),
    "YAML": lambda key: "key: |\n" + "".join(f"    {line}\n" for line in key.splitlines()),
    "env file": lambda key: 'KEY="' + key.replace("\n", "\\n") + '"\n',
    "after a certificate": lambda key: key.replace("PRIVATE KEY", "CERTIFICATE").replace("RSA ", "") + key,
    "encrypted": lambda key: key.replace(
        "-----\n", "-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,0\n\n", 1
    ),
}


@each_case("place", KEY_PLACES)
@each_case("kind", ["", "RSA ", "EC ", "DSA ", "OPENSSH ", "ENCRYPTED "])
def test_a_private_key_is_found_in_every_place(kind: str, place: str) -> None:
    for body in (64, 300, 1600, 3200):
        assert secret_value_kind(KEY_PLACES[place](private_key(kind, body)).encode()) == "a private key"


@each_case(
    "text",
    [
        'if "-----BEGIN PRIVATE KEY-----" in text: raise ValueError',
        "It starts with `-----BEGIN RSA PRIVATE KEY-----`.",
        '_START = b"-----BEGIN " + kind + b" PRIVATE KEY-----\\n"',
        "as in:\n-----BEGIN PRIVATE KEY-----\n...\n-----END PRIVATE KEY-----\n",
        "as in:\n-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBg...\n-----END PRIVATE KEY-----\n",
        "as in:\n-----BEGIN PRIVATE KEY-----\n<your key>\n",
        private_key().replace("PRIVATE", "PUBLIC"),
        private_key().replace("PRIVATE KEY", "CERTIFICATE"),
    ],
)
def test_words_about_private_keys_are_none(text: str) -> None:
    assert secret_value_kind(text.encode()) is None


_HASH = hashlib.sha256(b"1").hexdigest()
HARMLESS = {
    "TOKENIZERS_PARALLELISM": "false",
    "MAX_TOKENS": "2048",
    "PAD_TOKEN": "<pad>",
    "PLACEHOLDER_TOKEN": "<my-concept>",
    "INITIALIZER_TOKEN": "sculpture",
    "TOKENIZER_PATH": "/models/tokenizer.json",
    "MAX_KEY_LENGTH": "64",
    "COST_PER_TOKEN": "0.000002",
    "NUM_TOKENS": "300000000000",
    "KEY": "value",
    "CACHE_KEY": _HASH,
    "KMS_KEY_ID": f"arn:aws:kms:us-east-1:123456789012:key/{uuid.UUID(int=2**127 + 3)}",
    "PUBLIC_KEY": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA" + random_text(ALNUM, 43),
    "HF_TOKEN_PATH": "/run/secrets/hf",
    "SECRET_NAME": "hugging-face",
    "TRAINYARD_SIGNING_KEY_FILE": "/keys/signing.pem",
    "PASSWORD_FILE": "/run/secrets/password",
    "SECRETARY": "Ms Key",
    "MONKEY": "banana",
    "GIT_COMMIT": _HASH[:40],
    "TORCH_SHA256": _HASH,
    "IMAGE": f"python@sha256:{_HASH}",
    "RUN_ID": str(uuid.UUID(int=2**126 + 12345)),
    "MODEL": "sentence-transformers/paraphrase-multilingual-MiniLM-L12-v2",
    "HF_MODEL": "hf_internal_testing_tiny_random_LlamaForCausalLM",
    "HF_FUNCTION": "hf_hub_download",
    "WANDB_PROJECT": "wandb_v1_migration_of_all_the_old_experiments_to_new",
    "WANDB_RUN_ID": "3f1k2j9x",
    "LOCALE": "sk-SK",
    "CLASS_NAME": "sk-" + "VeryLongCamelCaseNameOfSomeEstimatorInHtmlOutput",
    "BRANCH": "task-sk-" + "proj-4Ab" + random_text(ALNUM, 60),
    "BRANCH_OLD": "task-sk-" + random_text(ALNUM, 48, 1),
    "SLACK_EMOJI": "xoxd-hugs-and-kisses-from-the-whole-of-the-training-team-to-all",
    "MAX_API_KEYS": "3",
    "TRAIN_TOKENS": "1000000000",
    "IMAGE_PULL_SECRET": "registry-login",
    "SORT_KEYS": "a,b",
    **{
        f"{word}_TOKEN": "<|x|>"
        for word in ("BEGIN", "SEPARATOR", "CLASS", "IGNORE", "QUERY", "POOL", "REGISTER")
    },
    "CSS": "sk-estimator-doc-link-fitted-text-repr-fallback-is-long",
    "SKLEARN": "scikit-learn-intelex-2026.0.0-py311-linux-x86-64-build",
    "PROTEIN": "MKTAYIAKQRQISFVKSHFSRQLEERLGLIEVQAPILSRVGDGTQDNLSGAEKAVQVKVKALPDAQFEVV",
    "PROTEIN_LINE": "ASIA" + "MKTAYIAKQRQISFVKSHFSRQLEERLGLIEVQAPILSRVGDGTQDNLSGAEK",
    "CONTINENT": "ASIA",
    "EXAMPLE": "AKIAIOSFODNN7EXAMPLE",
    "AWS_SECRET_ACCESS_KEY_EXAMPLE": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "GITHUB_EXAMPLE": "ghp_" + "x" * 36,
    "HOOK_EXAMPLE": "https://hooks.slack.com/services/T00000000/B00000000/" + "X" * 24,
    "CI": "${{ secrets.HF_TOKEN }}",
    "SHELL": "/bin/bash",
    "DATA": "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAA" + random_text(BASE64, 3000),
    "BASE64": random_text(BASE64, 3000),
    "URL": "https://a.b/" + random_text(URL, 300),
}


@each_case("name", HARMLESS)
def test_a_harmless_variable_is_none_in_every_place_and_case(name: str) -> None:
    value = HARMLESS[name]
    texts = {place: write(name, value) for place, write in PLACES.items()}
    texts |= {place: write(value) for place, write in BARE_PLACES.items()}
    assert [place for place, text in texts.items() if secret_value_kind(text.encode())] == []
    assert secret_kind(name, value) is None
    parts = name.split("_")
    camel = parts[0].lower() + "".join(part.capitalize() for part in parts[1:])
    for written in (name, name.lower(), name.replace("_", "-"), camel, f"MY_{name}"):
        assert not is_secret_name(written)


def test_a_lock_with_hashes_is_none() -> None:
    hashes = (hashlib.sha256(f"{each}".encode()).hexdigest() for each in range(3000))
    lock = "".join(f"package-{each[:4]}==1.0 \\\n    --hash=sha256:{each}\n" for each in hashes)
    integrity = json.dumps({"integrity": "sha512-" + random_text(BASE64, 86) + "=="}) * 500
    assert secret_value_kind(lock.encode()) is None
    assert secret_value_kind(integrity.encode()) is None


BUILD_VARIABLES = ("$TOKEN", "${TOKEN}", "${TOKEN:-}", "${token}")
REFERENCES = (*BUILD_VARIABLES, "$(TOKEN)", "$(cat /run/secrets/hf)", "${{ secrets.HF_TOKEN }}")
PATHS = ("/run/secrets/hf", "/var/run/secrets/a.b/token", "~/.ssh/id", "~/.cache/huggingface/token")
LITERALS_WITH_DOLLARS = ("$uper9", "pa$$word", "$A$B", "a$TOKEN", "$TOKEN-x", "$1abc", "/pa+ss/w0rd", "/w0rd")
SECRET_NAMES = (
    *("HF_TOKEN", "TOKEN", "GITHUB_TOKEN", "GH_TOKEN", "SLACK_BOT_TOKEN", "CODECOV_TOKEN", "hf_token"),
    *("PASSWORD", "DB_PASSWORD", "POSTGRES_PASSWORD", "MYSQL_ROOT_PASSWORD", "PASSWD", "KEY_PASSPHRASE"),
    *("WANDB_API_KEY", "OPENAI_API_KEY", "ANTHROPIC_API_KEY", "NGC_API_KEY", "APIKEY", "WANDB_KEY"),
    *("AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN", "AWS_SECRET_KEY", "SecretAccessKey"),
    *("CLIENT_SECRET", "JWT_SECRET", "VAULT_SECRET_ID", "SIGNING_KEY", "PRIVATE_KEY", "SSH_PRIVATE_KEY"),
    *("SLACK_WEBHOOK_URL", "WEBHOOK_URL", "apiKey", "clientSecret", "HF_TOKEN_2", "SSH_KEY_B64", "api-key"),
    *("PASSWORDS", "DB_PASSWORDS", "SECRETS", "CLIENT_SECRETS", "API_KEYS", "OPENAI_API_KEYS", "apiKeys"),
    *(f"{vendor}_TOKENS" for vendor in ("HF", "GITHUB", "SLACK", "WANDB", "OPENAI", "API", "ACCESS")),
    *("HF_TOKEN_READ", "HF_TOKEN_WRITE", "TOKEN_HF", "API_KEY_OPENAI", "PASSWORD_ADMIN", "hfTokenRead"),
)


@each_case("name", SECRET_NAMES)
def test_a_variable_with_the_name_of_a_secret_holds_one(name: str) -> None:
    assert is_secret_name(name)
    assert secret_kind(name, "hunter2") == "a secret"
    for value in (*REFERENCES, *PATHS, "", "true", "False", "none"):
        assert secret_kind(name, value) is None, value
    for value in LITERALS_WITH_DOLLARS:
        assert secret_kind(name, value) == "a secret", value
    for value in (*BUILD_VARIABLES, *LITERALS_WITH_DOLLARS):
        assert baked_secret_kind(name, value) == "a secret", value
    for ending in ("_FILE", "_PATH", "_NAME", "_ARN", "_DIR", "_TTL", "IZER"):
        assert not is_secret_name(name + ending)


@each_case("name", SECRET_NAMES)
def test_a_dockerfile_bakes_what_a_variable_of_a_secrets_name_holds(name: str) -> None:
    used = name.replace("-", "_")
    for value in (f"${used}", f"${{{used}}}", f"${{{used}:-x}}", f"https://user:${{{used}}}@a.b"):
        assert baked_secret_kind("ADDRESS", value) == "a secret"
    for value in ("$A", "${MAX_TOKENS}", f"/{name}", f"\\${used}", "1"):
        assert baked_secret_kind("ADDRESS", value) is None


def test_a_variable_of_a_build_is_one_and_nothing_else() -> None:
    for value in (*BUILD_VARIABLES, "$uper9"):
        assert is_build_variable(value)
    for value in ("", "a$TOKEN", "$A$B", "$(TOKEN)", "$1abc", *PATHS):
        assert not is_build_variable(value)


def test_every_row_is_used_and_has_no_fixed_length() -> None:
    found = {secret_value_kind(token.encode()) for _, _, token in tokens()} | {"a private key"}
    found |= {"a secret key of AWS", "a session token of AWS"}
    assert {form.kind for form in _table().forms} == found
    for form in _table().forms:
        assert not any(b"{%d}" % length in form.pattern.pattern for length in (36, 40, 82, 48))
