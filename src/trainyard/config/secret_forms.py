"""Recognise secrets by their form, or by the name of their variable; no other module has such a table.

    bytes of a file, value of a variable ──secret_value_kind──> kind of secret
    text ──find_tokens──> the place of each secret in it, for `secret_filter`
    name of a variable ──is_secret_name──> yes or no

Build contexts, layers of images, Dockerfiles, build arguments, env files, manifests and jobs are judged by
it. The table is `secret_forms.toml`. Why this is no library: docs/decisions/0032.
"""

import re
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import NamedTuple


class SecretForm(NamedTuple):
    """One form of a secret."""

    kind: str
    """The name for people, such as `a token of GitHub`."""
    hints: tuple[bytes, ...]
    """Every match starts with one of them."""
    pattern: re.Pattern[bytes]


class _Table(NamedTuple):
    forms: tuple[SecretForm, ...]
    entire_key: re.Pattern[bytes]
    """A private key up to its last line."""
    files: tuple[tuple[re.Pattern[str], str], ...]
    """Paths of files that are a secret, each with its kind."""
    settings: tuple[tuple[re.Pattern[str], re.Pattern[bytes], str], ...]
    """Names of files of settings, the form of a secret in them, its kind."""
    ends: tuple[tuple[str, ...], ...]
    vendors: frozenset[str]
    endings: frozenset[str]
    of_text: frozenset[str]


@cache
def _table() -> _Table:
    read = tomllib.loads(files("trainyard.config").joinpath("secret_forms.toml").read_text(encoding="utf-8"))
    parts, names = read["parts"], read["names"]
    forms = []
    for form in read["form"]:
        pattern = re.sub(r"<([A-Z0-9_]+)>", lambda part: parts[part[1]], form["pattern"])
        hints = tuple(hint.encode() for hint in form["hints"])
        forms.append(SecretForm(form["kind"], hints, re.compile(pattern.encode())))
    key = parts["PRIVATE_KEY"] + (
        r"(?:(?s:.{0,20000}?)-----END [A-Z0-9 ]{0,40}-----|(?:[^A-Za-z0-9]{0,20}[A-Za-z0-9+/=]{16,})*)"
    )
    vendors = frozenset(names["vendors"])
    return _Table(
        tuple(forms),
        re.compile(key.encode()),
        tuple((re.compile(rf"(?s:.*){one['path']}"), one["kind"]) for one in read["file"]),
        tuple(
            (re.compile(one["names"]), re.compile(one["form"].encode(), re.MULTILINE), one["kind"])
            for one in read["setting"]
        ),
        tuple(tuple(words.split()) for words in names["ends"]),
        vendors,
        vendors | frozenset(names["endings"]),
        frozenset(names["of_text"]),
    )


_PLACEHOLDER = re.compile(rb"(?i)example|placeholder|redacted|your[_-]|x{6}|0{8}|\*{4}|\.{3}")
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_BEFORE_TOKENS = frozenset(("AUTH", "ACCESS", "API", "BEARER"))
# Nothing, a switch, a place to fill in, or the path of a file that holds the secret.
_NO_SECRET_VALUE = re.compile(
    r"(?i)(?:true|false|yes|no|on|off|none|null|[01]|<[a-z][\w .:/-]*>|[a-z_]{0,40}placeholder[a-z_]{0,40}|"
    r"(?:~/[\w.-]+|(?:/[\w.-]+){2})(?:/[\w.-]+)*/?)?"
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
    table = _table()
    for form in table.forms:
        for hint in form.hints:
            at = content.find(hint)
            while at >= 0:
                found = form.pattern.match(content, at)
                if found and not _PLACEHOLDER.search(found[0]):
                    start, end = found.span(found.lastindex or 0)
                    if found[0].startswith(b"-----BEGIN "):
                        end = max(end, table.entire_key.match(content, start).end())  # type: ignore[union-attr]
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


def secret_file_kind(path: str) -> str | None:
    """Return the kind of secret that a file is by its path; None for any other path."""
    return next((kind for files, kind in _table().files if files.fullmatch(f"/{path}")), None)


def secret_setting_kind(name: str, content: bytes) -> str | None:
    """Return the kind of secret in a file of settings of this name; None if there is none."""
    for names, form, kind in _table().settings:
        found = form.search(content) if names.fullmatch(name) else None
        if found and not is_placeholder(found[0]):
            return kind
    return None


def is_secret_name(name: str) -> bool:
    """Return whether a variable of this name usually holds a secret: HF_TOKEN, but not MAX_TOKENS."""
    words, table = [word.upper() for word in _WORD.findall(name)], _table()
    while words and (words[-1] in table.endings or words[-1].isdigit()):
        words.pop()
    plural = bool(words) and words[-1].endswith("S")
    if plural:
        words[-1] = words[-1].removesuffix("S")
    ending = max((end for end in table.ends if tuple(words[-len(end) :]) == end), key=len, default=())
    if not ending:
        return False
    before = words[-len(ending) - 1] if len(words) > len(ending) else ""
    if ending == ("TOKEN",) and plural:
        return before in table.vendors | _BEFORE_TOKENS
    if ending == ("SECRET",) and before == "PULL":  # the name of an object of Kubernetes
        return False
    return not (before in table.of_text and (plural or ending == ("TOKEN",)))


def secret_kind(name: str, value: str) -> str | None:
    """Return the kind of secret that a variable holds, by its value or else by its name.

    None for an empty value, a reference such as $TOKEN or ${TOKEN}, <a place to fill in>, the path of a file,
    and yes or no. `$uper9` is a password where nothing fills in variables, as in an env file.
    """
    if kind := secret_value_kind(f"{name}={value}".encode(errors="surrogateescape")):
        return kind
    if _NO_SECRET_VALUE.fullmatch(value.strip()) or _REFERENCE.fullmatch(value):
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
