"""Describe expected and actual values: `expected a number above 0, got "5e-5"`.

Expectations come from the JSON Schema, so that messages, the reference and editors agree.
"""

import json
import math
from typing import Any

from trainyard.config.problems import shorten
from trainyard.config.section import LONGEST_TEXT, MOST
from trainyard.config.yaml.scalars import plain_value

Fragment = dict[str, Any]
_SHOWN_CHARACTERS = 80
_YES_NO = {"yes": "true", "on": "true", "y": "true", "no": "false", "off": "false", "n": "false"}


def describe_expected(fragment: Fragment) -> str:
    """Describe the values that a schema allows, for example `a whole number above 0 or null`."""
    if "anyOf" in fragment:
        return " or ".join(describe_expected(choice) for choice in fragment["anyOf"])
    if "enum" in fragment:
        return _one_of([show_value(value) for value in fragment["enum"]])
    if "const" in fragment:
        return show_value(fragment["const"])
    kind = fragment.get("type")
    if kind in ("integer", "number"):
        return ("a whole number" if kind == "integer" else "a number") + _range(fragment)
    if kind == "string":
        examples = [show_value(example) for example in fragment.get("examples", [])]
        return f"text like {_one_of(examples)}" if examples else "text"
    if kind == "array":
        return "a list of texts"
    if kind == "object" and isinstance(fragment.get("additionalProperties"), dict):
        return "a mapping of names to texts"
    words = {"boolean": "true or false", "null": "null", "object": "a section of keys"}
    return words.get(str(kind), "a value")


def describe_actual(value: Any, fragment: Fragment) -> str:
    """Describe the actual value, with a hint at the fix where it is obvious."""
    hint = _hint(value, fragment)
    return show_value(value) + (f" ({hint})" if hint else "")


def show_value(value: Any) -> str:
    """Show `value` as in YAML, on one line of limited length."""
    if isinstance(value, dict):
        return "a mapping" if value else "{}"
    if isinstance(value, list):
        return "a list" if value else "[]"
    if isinstance(value, str):
        return _quote(value)
    if isinstance(value, float) and not math.isfinite(value):
        return ".nan" if math.isnan(value) else "-.inf" if value < 0 else ".inf"
    return shorten(json.dumps(value))


def _quote(text: str) -> str:
    start = text[:_SHOWN_CHARACTERS]
    word = json.dumps(start, ensure_ascii=not start.isprintable())
    return word if start == text else f'{word[:-1]}…" of {len(text):,} characters'


def _one_of(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _range(fragment: Fragment) -> str:
    low, above = fragment.get("minimum"), fragment.get("exclusiveMinimum")
    high, below = fragment.get("maximum"), fragment.get("exclusiveMaximum")
    if high is not None and high >= MOST:
        high = None
    if low is None and above is not None and fragment["type"] == "integer" and high is not None:
        low = above + 1
    if low is not None and high is not None:
        return f" from {low:,} to {high:,}"
    lower = f" above {above:,}" if above is not None else f" of at least {low:,}" if low is not None else ""
    upper = f" below {below:,}" if below is not None else f" of at most {high:,}" if high is not None else ""
    return " and".join(part for part in (lower, upper) if part)


def _kinds(fragment: Fragment) -> set[str]:
    choices = fragment.get("anyOf", [fragment])
    return {str(choice.get("type", "")) for choice in choices}


def _hint(value: Any, fragment: Fragment) -> str:
    kinds = _kinds(fragment)
    if isinstance(value, str) and kinds <= {"string", "null"} and len(value) > LONGEST_TEXT:
        return f"at most {LONGEST_TEXT:,}"
    if isinstance(value, str):
        return _hint_for_text(value, kinds)
    if isinstance(value, float) and not math.isfinite(value):
        return "not finite"
    if isinstance(value, float) and "integer" in kinds and value.is_integer():
        return f"write {shorten(str(int(value)))}"
    if isinstance(value, int) and value > MOST and "integer" in kinds:
        return f"at most {MOST:,}"
    if isinstance(value, bool | int | float) and "string" in kinds and "examples" not in fragment:
        return f'to mean text, write "{show_value(value)}"'
    if value is None and "object" in kinds:
        return "give it keys, or remove the line"
    return ""


def _hint_for_text(value: str, kinds: set[str]) -> str:
    if not value:
        return "empty; write null for none" if "null" in kinds else "empty"
    if "null" in kinds and value.lower() in ("none", "nil"):
        return "write null"
    if "boolean" in kinds and value.lower() in _YES_NO:
        return f"write {_YES_NO[value.lower()]}"
    if not kinds & {"integer", "number", "boolean"} or len(value) > 40:
        return ""
    meant = _number(value.strip())
    if meant is not None or ("boolean" in kinds and value in ("true", "false")):
        return "a string: remove the quotes"
    meant = _number(value.replace("_", "").replace(",", ""))
    return f"write {show_value(meant)}" if meant is not None else ""


def _number(text: str) -> float | None:
    value = plain_value(text)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
