"""Recognise secrets by their form, or by the name of their variable; no other module has such a table.

    bytes of a file, value of a variable ──secret_value_kind──> kind of secret
    text ──find_tokens──> the place of each secret in it, for `secret_filter`
    name of a variable ──is_secret_name──> yes or no

Build contexts, layers of images, Dockerfiles, build arguments, env files, manifests and jobs are judged by
it. A form is a prefix and the shortest rest, and never a fixed length: vendors lengthen their tokens
without notice. Its value is the group of its pattern, or all of it. Why this is no library:
docs/decisions/0032.
"""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple


class SecretForm(NamedTuple):
    """One form of a secret."""

    kind: str
    """The name for people, such as `a token of GitHub`."""
    hints: tuple[bytes, ...]
    """Every match starts with one of them. Finding them first is many times as fast as a search."""
    pattern: re.Pattern[bytes]


# Not in the middle of a word; in JSON and Python a word may follow an escape such as \n, in an address %3D.
_START = rb"(?:(?<![A-Za-z0-9_])|(?<=\\[nrt])|(?<=%[0-9A-Fa-f][0-9A-Fa-f]))"
_NOT_AFTER_DASH = rb"(?<!-)"
_BASE64_START = rb"(?:(?<![A-Za-z0-9+/_-])|(?<=\\[nrt]))"
# Random text has both cases; a hash, a word or the name of a function has one.
_MIXED = rb"(?=[a-z0-9_.+/=-]*[A-Z])(?=[A-Z0-9_.+/=-]*[a-z])"
# Between a name and its value: "] = ", ": ", or the next line of a manifest, "value: ".
_GAP = rb"(?:[\s\"'\\\]):=,>({]|value|key){1,40}"
_ESCAPED_SPACE = rb"(?:\s|\\[nrt]|[\"',+()b\\]|Version: [^\n]*)"
_PRIVATE_KEY = rb"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----"
_ENTIRE_KEY = re.compile(
    _PRIVATE_KEY
    + rb"(?:(?s:.{0,20000}?)-----END [A-Z0-9 ]{0,40}-----|(?:[^A-Za-z0-9]{0,20}[A-Za-z0-9+/=]{16,})*)"
)


def _form(kind: str, hints: str, pattern: bytes) -> SecretForm:
    return SecretForm(kind, tuple(hint.encode() for hint in hints.split("|")), re.compile(pattern))


# From the vendors' documents and the rules of gitleaks and kingfisher, read or seen in 2026-11.
_FORMS: tuple[SecretForm, ...] = (
    _form("a token of GitHub", "ghp_|gho_|ghu_|ghr_|ghs_", _START + rb"gh[pousr]_[A-Za-z0-9]{36,}"),
    # ghs_APPID_JWT
    _form(
        "a token of GitHub",
        "ghs_",
        _START + rb"ghs_[A-Za-z0-9]+_[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}[A-Za-z0-9_.-]*",
    ),
    _form("a token of GitHub", "github_pat_", _START + rb"github_pat_[A-Za-z0-9_]{36,}"),
    # IAM User Guide, unique identifiers; AccessKeyId has 16 to 128 characters
    _form(
        "a key of AWS",
        "AKIA|ASIA",
        # A line of a protein's sequence may start like a key: a longer one needs a digit.
        _START + rb"(?:AKIA|ASIA)(?:[A-Z2-7]{16}|(?=[A-Z]*[2-7])[A-Z2-7]{17,})(?![A-Za-z0-9])",
    ),
    # AWS CLI User Guide, configuration files
    _form(
        "a secret key of AWS",
        "SECRET_ACCESS_KEY|secret_access_key|ecretAccessKey|secret-access-key|AWS_SECRET_KEY|aws_secret_key",
        rb"[A-Za-z_-]{12,17}" + _GAP + _MIXED + rb"([A-Za-z0-9/+]{40,})",
    ),
    # STS API Reference: no length is promised
    _form(
        "a session token of AWS",
        "SESSION_TOKEN|session_token|essionToken",
        rb"[A-Za-z_]{11,13}" + _GAP + _MIXED + rb"([A-Za-z0-9/+=]{100,})",
    ),
    # rule aws-amazon-bedrock-api-key-long-lived of gitleaks
    _form("a key of Amazon Bedrock", "ABSK", _BASE64_START + _MIXED + rb"ABSK[A-Za-z0-9+/]{100,}"),
    # aws/aws-bedrock-token-generator-js, src/token.ts
    _form(
        "a key of Amazon Bedrock",
        "bedrock-api-key-",
        _START + rb"bedrock-api-key-" + _MIXED + rb"[A-Za-z0-9+/=]{40,}",
    ),
    # huggingface.co/docs/hub/security-tokens; rule huggingface-access-token of gitleaks
    _form(
        "a token of Hugging Face",
        "hf_|api_org_",
        _START + rb"(?:hf|api_org)_" + _MIXED + rb"[A-Za-z0-9]{34,}",
    ),
    # huggingface.co/docs/hub/oauth
    _form(
        "a token of Hugging Face",
        "hf_oauth_|hf_jwt_",
        _START + rb"hf_(?:oauth|jwt)_" + _MIXED + rb"[A-Za-z0-9_.-]{40,}",
    ),
    # docs.slack.dev, tokens and token rotation
    _form("a token of Slack", "xox", _START + rb"xox[a-z](?:\.xox[a-z])?-\d[A-Za-z0-9-]{20,}"),
    # the cookie d of a browser's session, base64 in an address's escapes
    _form(
        "a token of Slack",
        "xoxd-",
        _START + rb"xoxd-(?=[a-z0-9%+/=]*[A-Z])(?=[A-Z0-9%+/=]*[a-z])[A-Za-z0-9%+/=]{40,}",
    ),
    # docs.slack.dev, app-level tokens
    _form("a token of Slack", "xapp-", _START + rb"xapp-\d-[A-Za-z0-9-]{20,}"),
    # docs.slack.dev, incoming webhooks, webhook triggers
    _form(
        "a webhook of Slack",
        "hooks.slack",
        rb"hooks\.slack(?:-gov)?\.com/(?:services|workflows|triggers)/[A-Z0-9]{6,}"
        rb"(?:/[A-Za-z0-9]{6,}){1,2}/[A-Za-z0-9]{16,}",
    ),
    # 86 characters since January 2026: wandb/server issue 163, lerobot issue 2762
    _form("a key of W&B", "wandb_v", _START + rb"wandb_v\d+_" + _MIXED + rb"[A-Za-z0-9_]{40,}"),
    # 40 hexadecimal digits, until 2025: wandb/sdk/lib/apikey.py at v0.22
    _form(
        "a key of W&B",
        "WANDB_API_KEY|wandb_api_key|WANDB_KEY|wandb_key|wandb.login(|wandb login",
        rb"(?i:wandb(?:_api)?_key|wandb\.login\(|wandb login(?: --?\S+)*)"
        + _GAP
        + rb"((?:local-)?[0-9a-f]{40,})(?![0-9A-Za-z])",
    ),
    # rule openai-api-key of gitleaks
    _form(
        "a key of OpenAI",
        "sk-",
        # A name in code, or a branch such as task-sk-…, may resemble one: a key has a digit.
        _START + _NOT_AFTER_DASH + rb"sk-(?=[A-Za-z_-]*\d)"
        rb"(?:(?:proj|svcacct|admin)-" + _MIXED + rb"[A-Za-z0-9_-]{40,}"
        rb"|" + _MIXED + rb"(?=[A-Za-z]*\d)[A-Za-z0-9]{40,})",
    ),
    # rules anthropic-api-key and anthropic-admin-api-key of gitleaks
    _form("a key of Anthropic", "sk-ant-", _START + rb"sk-ant-" + _MIXED + rb"[A-Za-z0-9_-]{40,}"),
    # rule kingfisher.nvapi.1: 64 characters after the prefix
    _form("a key of NGC", "nvapi-", _START + rb"nvapi-" + _MIXED + rb"[A-Za-z0-9_-]{40,}"),
    # NGC's older keys, 84 characters of base64
    _form(
        "a key of NGC",
        "NGC_API_KEY|ngc_api_key|NGC_CLI_API_KEY|ngc_cli_api_key",
        rb"(?i:ngc_(?:cli_)?api_key)" + _GAP + _MIXED + rb"([A-Za-z0-9+/=]{60,})",
    ),
    # RFC 7468, RFC 9580
    _form(
        "a private key",
        "-----BEGIN ",
        # A file that starts like a key is one. Elsewhere the key itself must follow: code and documents know
        # the words.
        rb"\A" + _PRIVATE_KEY + rb"\s|" + _PRIVATE_KEY + rb"(?:\r?\n[A-Za-z0-9+/]{3,}\S*"
        rb"|" + _ESCAPED_SPACE + rb"{1,60}?(?:Proc-Type:|[A-Za-z0-9+/]{24,})\S*)",
    ),
)
_PLACEHOLDER = re.compile(rb"(?i)example|placeholder|redacted|your[_-]|x{6}|0{8}|\*{4}|\.{3}")

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_SECRET_ENDS: tuple[tuple[str, ...], ...] = tuple(
    tuple(words.split())
    for words in (
        *("TOKEN", "SECRET", "SECRET ID", "PASSWORD", "PASSWD", "PASSPHRASE", "APIKEY", "API KEY"),
        *("ACCESS KEY", "ACCESS KEY ID", "SECRET KEY", "PRIVATE KEY", "SIGNING KEY", "ENCRYPTION KEY"),
        *("DEPLOY KEY", "SSH KEY", "WEBHOOK", "WEBHOOK URL"),
        *(f"{vendor} KEY" for vendor in ("WANDB", "OPENAI", "ANTHROPIC", "NGC", "HF", "GITHUB", "AWS")),
    )
)
_VENDORS = frozenset(
    (
        *("HF", "HUGGINGFACE", "HUB", "GITHUB", "GH", "GITLAB", "SLACK", "WANDB", "OPENAI", "ANTHROPIC"),
        *("NGC", "NVIDIA", "AWS", "NPM", "PYPI", "DOCKER", "CODECOV", "COMET", "NEPTUNE", "DISCORD"),
    )
)
# TOKENS are secrets after one of these words; elsewhere the variable is usually a number of text tokens.
_BEFORE_TOKENS = _VENDORS | {"AUTH", "ACCESS", "API", "BEARER"}
# Endings that do not change the meaning of a name, without their digits: BASE64, B64, TOKEN_2.
_ENDINGS = _VENDORS | frozenset(
    (
        *("BASE", "B", "VALUE", "JSON", "OLD", "NEW", "PROD", "PRODUCTION", "DEV", "STAGING", "TEST"),
        *("READ", "WRITE", "RO", "RW", "ADMIN"),
    )
)
# Words before TOKEN that make it a token of a text, not a credential: PAD_TOKEN, COST_PER_TOKEN.
_OF_TEXT = frozenset(
    (
        *("PAD", "PADDING", "EOS", "BOS", "UNK", "UNKNOWN", "MASK", "CLS", "SEP", "EOT", "EOD", "SOT", "BOI"),
        *("EOI", "START", "END", "STOP", "SPECIAL", "ADDITIONAL", "ADDED", "NEWLINE", "BLANK", "DECODER"),
        *("IMAGE", "IMG", "AUDIO", "VIDEO", "VISION", "TEXT", "PROMPT", "THINK", "TOOL", "SINGLE"),
        *("NUM", "MAX", "MIN", "PER", "NEXT", "PREV", "FIRST", "LAST", "BEGIN", "SEPARATOR", "CLASS"),
        *("IGNORE", "QUERY", "POOL", "REGISTER", "PLACEHOLDER", "INITIALIZER", "MODIFIER", "TRIGGER"),
        *("INSTANCE", "PREFIX", "MIDDLE", "SUFFIX"),
    )
)
# Nothing, a switch, or the path of a file that holds the secret.
_NO_SECRET_VALUE = re.compile(
    r"(?i)\s*(?:true|false|yes|no|on|off|none|null|[01]|(?:~/[\w.-]+|(?:/[\w.-]+){2})(?:/[\w.-]+)*/?)?\s*"
)
# $NAME in capitals, ${NAME…}, ${{ secrets.NAME }}, $(NAME) of Kubernetes, $(command) of a shell.
_REFERENCE = re.compile(
    r"\s*(?:\$[A-Z_][A-Z0-9_]*|\$\{\{[^{}]*\}\}|\$\{[A-Za-z_]\w*(?:[^\w{}][^{}]*)?\}|\$\([^()]*\))\s*"
)
_EXPANDED = re.compile(r"(?<!\\)\$(?:\{([A-Za-z_]\w*)[^{}]*\}|([A-Za-z_]\w*))")


def find_tokens(content: bytes) -> Iterator[tuple[int, int, str]]:
    """Yield start, end and kind of each secret of a known form in text of any length, form by form.

    A private key reaches to its last line, or if that is missing to the end of its text.
    """
    for form in _FORMS:
        for hint in form.hints:
            at = content.find(hint)
            while at >= 0:
                found = form.pattern.match(content, at)
                if found and not _PLACEHOLDER.search(found[0]):
                    start, end = found.span(found.lastindex or 0)
                    if found[0].startswith(b"-----BEGIN "):
                        end = max(end, _ENTIRE_KEY.match(content, start).end())  # type: ignore[union-attr]
                    yield start, end, form.kind
                    at = end - 1
                at = content.find(hint, at + 1)


def is_placeholder(content: bytes) -> bool:
    """Return whether a text is no secret, but shows where one belongs."""
    return bool(
        _PLACEHOLDER.search(content) or re.search(rb"(?i)://[^:]*:(?:pass\w*|secret|token)@", content)
    )


def secret_value_kind(content: bytes) -> str | None:
    """Return the kind of secret in text of any length; None if there is none."""
    return next((kind for *_, kind in find_tokens(content)), None)


def is_secret_name(name: str) -> bool:
    """Return whether a variable of this name usually holds a secret: HF_TOKEN, but not MAX_TOKENS."""
    words = [word.upper() for word in _WORD.findall(name)]
    while words and (words[-1] in _ENDINGS or words[-1].isdigit()):
        words.pop()
    plural = bool(words) and words[-1].endswith("S")
    if plural:
        words[-1] = words[-1].removesuffix("S")
    ending = max((end for end in _SECRET_ENDS if _ends_with(words, end)), key=len, default=())
    if not ending:
        return False
    before = words[-len(ending) - 1] if len(words) > len(ending) else ""
    if ending == ("TOKEN",) and plural:
        return before in _BEFORE_TOKENS
    if ending == ("SECRET",) and before == "PULL":  # the name of an object of Kubernetes
        return False
    return not (before in _OF_TEXT and (plural or ending == ("TOKEN",)))


def secret_kind(name: str, value: str) -> str | None:
    """Return the kind of secret that a variable holds, by its value or else by its name.

    None for an empty value, for a reference such as $TOKEN or ${TOKEN}, for the path of a file, and for yes
    or no. `$uper9` is a password where nothing fills in variables, as in an env file.
    """
    if kind := secret_value_kind(f"{name}={value}".encode(errors="surrogateescape")):
        return kind
    if _NO_SECRET_VALUE.fullmatch(value) or _REFERENCE.fullmatch(value):
        return None
    return "a secret" if is_secret_name(name) else None


def baked_secret_kind(name: str, value: str) -> str | None:
    """Return the kind of secret that an ENV of a Dockerfile keeps in the image.

    A build fills in variables there: `ENV HF_TOKEN=$HF_TOKEN` keeps the value of the build argument.
    """
    if kind := secret_kind(name, value):
        return kind
    used = [match[1] or match[2] for match in _EXPANDED.finditer(value)]
    return "a secret" if used and any(map(is_secret_name, (name, *used))) else None


def is_build_variable(value: str) -> bool:
    """Return whether a value in a Dockerfile is one variable and nothing else: $NAME or ${NAME…}."""
    return bool(_EXPANDED.fullmatch(value))


def _ends_with(words: Sequence[str], end: Sequence[str]) -> bool:
    return tuple(words[-len(end) :]) == tuple(end)
