"""Describe expected and actual values: `expected a number above 0, got "5e-5"`.

Expectations come from the JSON Schema, so that messages, the reference and editors agree.
"""

import json
import math
from typing import Any

from trainyard.config.problems import shorten
from trainyard.config.section import LONGEST_TEXT, MOST
from trainyard.config.yaml_reader import plain_value

Fragment = dict[str, Any]
_SHOWN_CHARACTERS = 80
_YES_NO = {"yes": "true", "on": "true", "y": "true", "no": "false", "off": "false", "n": "false"}
_WORDS = {"array": "a list of texts", "boolean": "true or false", "null": "null"}


def describe_expected(fragment: Fragment) -> str:
    """Describe the values that a schema allows, for example `a whole number above 0 or null`."""
    kind = str(fragment.get("type"))
    if "anyOf" in fragment:
        return " or ".join(describe_expected(choice) for choice in fragment["anyOf"])
    if "enum" in fragment:
        return _one_of([show_value(value) for value in fragment["enum"]])
    if kind in ("integer", "number"):
        return ("a whole number" if kind == "integer" else "a number") + _range(fragment)
    if kind == "string":
        examples = [show_value(example) for example in fragment.get("examples", [])]
        return f"text like {_one_of(examples)}" if examples else "text"
    if kind == "object":
        named = isinstance(fragment.get("additionalProperties"), dict)
        return "a mapping of names to texts" if named else "a section of keys"
    return _WORDS.get(kind, "a value")


def describe_actual(value: Any, fragment: Fragment) -> str:
    """Describe the actual value, with a hint at the fix where it is obvious."""
    kinds = {str(choice.get("type", "")) for choice in fragment.get("anyOf", [fragment])}
    hint = _hint_for_text(value, kinds) if isinstance(value, str) else _hint(value, kinds, fragment)
    return show_value(value) + (f" ({hint})" if hint else "")


def show_value(value: Any) -> str:
    """Show `value` as in YAML, on one line of limited length."""
    if isinstance(value, dict | list) and value:
        return "a mapping" if isinstance(value, dict) else "a list"
    if isinstance(value, float) and not math.isfinite(value):
        return ".nan" if math.isnan(value) else "-.inf" if value < 0 else ".inf"
    if not isinstance(value, str):
        return shorten(json.dumps(value))
    start = value[:_SHOWN_CHARACTERS]
    word = json.dumps(start, ensure_ascii=not start.isprintable())
    return word if start == value else f'{word[:-1]}…" of {len(value):,} characters'


def _one_of(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _range(fragment: Fragment) -> str:
    low, above = fragment.get("minimum"), fragment.get("exclusiveMinimum")
    high, below = fragment.get("maximum"), fragment.get("exclusiveMaximum")
    high = None if high is not None and high >= MOST else high
    if low is None and above is not None and fragment["type"] == "integer" and high is not None:
        low = above + 1
    if low is not None and high is not None:
        return f" from {low:,} to {high:,}"
    lower = f" above {above:,}" if above is not None else f" of at least {low:,}" if low is not None else ""
    upper = f" below {below:,}" if below is not None else f" of at most {high:,}" if high is not None else ""
    return " and".join(part for part in (lower, upper) if part)


def _hint(value: Any, kinds: set[str], fragment: Fragment) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return "not finite"
    if isinstance(value, float) and "integer" in kinds and value.is_integer():
        return f"write {shorten(str(int(value)))}"
    if isinstance(value, int) and value > MOST and "integer" in kinds:
        return f"at most {MOST:,}"
    if isinstance(value, bool | int | float) and "string" in kinds and "examples" not in fragment:
        return f'to mean text, write "{show_value(value)}"'
    return "give it keys, or remove the line" if value is None and "object" in kinds else ""


def _hint_for_text(value: str, kinds: set[str]) -> str:
    word = value.lower()
    if not value:
        return "empty; write null for none" if "null" in kinds else "empty"
    if "null" in kinds and word in ("none", "nil"):
        return "write null"
    if "boolean" in kinds and word in _YES_NO:
        return f"write {_YES_NO[word]}"
    if "boolean" in kinds and word in ("true", "false"):
        return "a string: remove the quotes"
    if len(value) > LONGEST_TEXT and kinds <= {"string", "null"}:
        return f"at most {LONGEST_TEXT:,}"
    if not kinds & {"integer", "number"} or len(value) > 40:
        return ""
    if _is_number(plain_value(value.strip())):
        return "a string: remove the quotes"
    meant = plain_value(value.replace("_", "").replace(",", ""))
    return f"write {show_value(meant)}" if _is_number(meant) else ""


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
