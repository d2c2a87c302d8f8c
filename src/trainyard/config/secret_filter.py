"""Replace secrets in what is recorded. Every record, log and message uses this filter, and no other.

    token of a known form ──> ***, and the first 8 hex digits of its SHA-256, so that two can be compared
    password in a URL; value after a secret's name (MY_API_KEY=…, --api-key …, "apiKey": "…") ──> ***
    a known value, such as that of a variable of the environment, wherever it is ──> the same

Values of fewer than 8 characters are kept, except a password in a URL: they are in many harmless texts. A
value that neither a form nor a name shows, and that no variable has, is not recognised.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import quote

from trainyard.config.secret_forms import find_tokens, secret_kind
from trainyard.errors import ConfigError

_MASK, _SHORTEST, _LONGEST_KEY = "***", 8, 8192
_MASKED = re.compile(r"(?<![\w*])\*\*\*(?:[0-9a-f]{8}(?!\w)|(?![\w*]))")
_URL = re.compile(rb"()[A-Za-z][A-Za-z0-9+.-]{0,30}://[^\s/:@\"']{0,200}:([^\s/\"']+)@")
_NAME = rb"(?i)(?<![\w.])((?:[a-z_][\w.-]{0,60})?(?:tok|secr|pass|key|webh)[\w.-]{0,40})"
_VALUE = rb"(?:\"([^\"\\\n]{8,})|'([^'\\\n]{8,})|([^\s\"'\\,;&<>{}()\[\]|]{8,}))"
_ASSIGNED = re.compile(_NAME + rb"[\\\"'\]]{0,3}[ \t]*(?:=>|[:=])[ \t]*\\?" + _VALUE)
_OPTION = re.compile(
    rb"(?<=-)" + _NAME.replace(rb"(?i)", b"") + rb"(?:[ \t]+|[\"']?,\s*)(?!-)" + _VALUE, re.I
)
_WORD = re.compile(r"(-{0,2}([A-Za-z_][\w.-]*))(?:=(.*))?", re.DOTALL)
Place = tuple[int, int, str, bytes]
"""Start and end of a secret, its kind, and its mask."""


class FoundSecret(NamedTuple):
    """A secret in a configuration or in the environment."""

    place: str
    """Such as `program.command: --api-key`."""
    variable: str
    """The variable of the environment that may hold it instead; empty if the place suggests none."""
    kind: str
    value: bytes
    mask: bytes


@dataclass(frozen=True)
class SecretFilter:
    """Replaces secrets that their form or name shows, and the known ones."""

    known: Mapping[bytes, bytes] = field(default_factory=dict)
    """Value -> its mask, the longest first."""

    @classmethod
    def of(cls, *values: Mapping[str, Any]) -> "SecretFilter":
        """Return the filter that knows the secrets in JSON-like `values`, in each way to write them."""
        known = {}
        for found in (each for value in values for each in find_secrets(value)):
            text = found.value.decode(errors="surrogatepass")
            forms = (text, json.dumps(text)[1:-1], repr(text)[1:-1], quote(found.value, safe=""))
            for form in (*forms, *text.splitlines()):
                if len(form) >= _SHORTEST:
                    known[form.encode(errors="surrogatepass")] = found.mask
        return cls(dict(sorted(known.items(), key=lambda each: -len(each[0]))))

    def mask_bytes(self, content: bytes) -> bytes:
        return self._replace(content, _secrets_in(content))

    def mask_values(self, value: Any) -> Any:
        """Return JSON-like data with its texts masked."""
        return _change(value, lambda _, name, text: self.mask_under(name, text))

    def mask_under(self, name: str, text: str) -> str:
        """Return the value of the variable or option `name` without its secrets."""
        content = text.encode(errors="surrogatepass")
        return self._replace(content, _secrets_under(name, content)).decode(errors="surrogatepass")

    def end_of_lines(self, content: bytes) -> int:
        """Return up to where a growing text can be masked: no line and no private key is cut."""
        end = max(content.rfind(b"\n"), content.rfind(b"\r")) + 1
        key = content.rfind(b"-----BEGIN ", max(0, len(content) - _LONGEST_KEY), end)
        lines = content[key:end] if key >= 0 else b""
        return key if b"PRIVATE KEY" in lines and b"-----END " not in lines else end

    def _replace(self, content: bytes, places: Iterable[Place]) -> bytes:
        for start, end, _, mask in sorted(places, reverse=True):
            content = content[:start] + mask + content[end:]
        for value, mask in self.known.items():
            content = content.replace(value, mask)
        return content


def find_secrets(value: Any) -> list[FoundSecret]:
    """Return the secrets in JSON-like data, such as a configuration or {"environment": os.environ}."""
    found: list[FoundSecret] = []

    def note(place: str, name: str, text: str) -> str:
        content, variable = text.encode(errors="surrogatepass"), _variable(name)
        for start, end, kind, mask in _secrets_under(name, content):
            found.append(FoundSecret(place, variable, kind, content[start:end], mask))
        return text

    _change(value, note)
    return found


def restore_secrets(values: Any, environment: Mapping[str, str]) -> Any:
    """Return JSON-like data of a record with its secrets from the environment.

    A token is found by its digits in any variable, any other secret by the name of its place. Raises
    ConfigError that names the places without one.
    """
    there = find_secrets({"environment": dict(environment)})
    tokens = {each.mask.decode(): each.value.decode() for each in there if each.mask != _MASK.encode()}
    missing: dict[str, str] = {}

    def restore(place: str, name: str, text: str) -> str:
        own = environment.get(name) or environment.get(_variable(name), "")
        if _MASKED.search(text) and SecretFilter().mask_under(name, own) == text:
            return own

        def secret(mask: re.Match[str]) -> str:
            if mask[0] not in tokens:
                missing[place] = _variable(name)
            return tokens.get(mask[0], "")

        return _MASKED.sub(secret, text)

    restored = _change(values, restore)
    if missing:
        places = [f"{place} (or set {name})" if name else place for place, name in missing.items()]
        raise ConfigError(
            f"{'; '.join(places)}: no record has the secret, and it is not in the environment. Give it "
            "again, after -- or with --set."
        )
    return restored


def _secrets_in(content: bytes) -> list[Place]:
    found = [
        (start, end, kind, f"{_MASK}{hashlib.sha256(content[start:end]).hexdigest()[:8]}".encode())
        for start, end, kind in find_tokens(content)
    ]
    for pattern in (_URL, _ASSIGNED, _OPTION):
        for match in pattern.finditer(content):
            start, end = match.span(match.lastindex or 0)
            name, value = (each.decode(errors="surrogateescape") for each in (match[1], content[start:end]))
            if not value.startswith(_MASK) and secret_kind(name or "password", value):
                found.append((start, end, "a secret" if name else "a password", _MASK.encode()))
    kept, taken = [], bytearray(len(content))
    for place in found:
        if not any(taken[place[0] : place[1]]):
            taken[place[0] : place[1]] = b"\1" * (place[1] - place[0])
            kept.append(place)
    return kept


def _secrets_under(name: str, content: bytes) -> list[Place]:
    """Return the secrets in the value of a variable or an option; all of it if only the name shows one."""
    text, start = content.decode(errors="surrogateescape"), len(name) + 1
    if not name:
        return _secrets_in(content)
    if secret_kind(name, text) == "a secret":
        is_one = len(content) >= _SHORTEST and not text.startswith(_MASK)
        return [(0, len(content), "a secret", _MASK.encode())] if is_one else []
    places = _secrets_in(f"{name}=".encode(errors="surrogateescape") + content)
    return [(max(at - start, 0), end - start, kind, mask) for at, end, kind, mask in places]


def _variable(name: str) -> str:
    """Return the variable that an option suggests; none for one of a letter, such as the -c of a shell."""
    return "" if len(name) == 1 else re.sub(r"\W", "_", name).upper()


def _change(value: Any, change: Callable[[str, str, str], str], place: str = "") -> Any:
    """Return JSON-like data with each text replaced by `change(place, name, text)`.

    The name is that of a variable in a section `environment`, or of the option before a word.
    """
    if isinstance(value, str):
        return change(place, "", value)
    if isinstance(value, Mapping):
        names = place.rpartition(".")[2] == "environment"
        return {
            key: change(f"{place}: {key}", key, each)
            if names and isinstance(each, str)
            else _change(each, change, f"{place}.{key}" if place else str(key))
            for key, each in value.items()
        }
    if not isinstance(value, list | tuple):
        return value
    changed, option = [], ""
    for number, each in enumerate(value, start=1):
        word = _WORD.fullmatch(each) if isinstance(each, str) else None
        if not isinstance(each, str):
            changed.append(_change(each, change, place))
        elif word and word[3] is not None:
            changed.append(f"{word[1]}={change(f'{place}: {word[1]}', word[2], word[3])}")
        else:
            label = option or f"word {number}"
            changed.append(change(f"{place}: {label}", option.lstrip("-"), each))
        option = word[1] if word and word[3] is None and each.startswith("-") else ""
    return changed
