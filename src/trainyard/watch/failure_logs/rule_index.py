"""Find quickly which patterns of the table may match a line, by words that their matches must contain.

    pattern  ──>  words, one of which is in every match  ──>  index by their first letters  ──>  candidates

It only avoids comparisons: a pattern without such a word is always a candidate. It judges no line.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

Owner = TypeVar("Owner")

_LETTERS = 3
"""Number of letters by which words are looked up; shorter words are too common to exclude a line."""
_LOOKAROUND = re.compile(r"\(\?(?:[=!]|<[=!])")
_OPTIONAL = re.compile(r"[?*]|\{0")
_QUANTIFIER = re.compile(r"[?*+]|\{[\d,]*\}")


def necessary_words(pattern: str) -> frozenset[str]:
    """Return words in lower case, one of which is in every match; empty if no such words are known."""
    found: set[str] = set()
    for alternative in _alternatives(pattern):
        words = _words_of(alternative)
        if not words:
            return frozenset()
        found |= words
    return frozenset(found)


def _words_of(alternative: str) -> frozenset[str]:
    """Return the longest literal text of an alternative, or else the words of one of its groups."""
    runs, groups = _runs_and_groups(alternative)
    longest = max(runs, key=len, default="").lower()
    if len(longest) >= _LETTERS:
        return frozenset((longest,))
    return next((words for group in groups if (words := necessary_words(group))), frozenset())


def _runs_and_groups(alternative: str) -> tuple[list[str], list[str]]:
    runs, groups, run, at = [], [], "", 0
    while at < len(alternative):
        kind, text, end = _next_part(alternative, at)
        quantifier = _QUANTIFIER.match(alternative, end)
        is_optional = _OPTIONAL.match(alternative, end) is not None
        if kind == "group" and not is_optional:
            groups.append(text)
        if kind == "letter" and not is_optional:
            run += text
        if kind != "letter" or quantifier:
            runs.append(run)
            run = ""
        at = quantifier.end() if quantifier else end
    return [*runs, run], groups


def _next_part(pattern: str, at: int) -> tuple[str, str, int]:
    """Return the kind of the part at an index, its text, and the index after it."""
    letter = pattern[at]
    if letter == "\\":
        escaped = pattern[at + 1]
        return ("other" if escaped.isalnum() else "letter"), escaped, at + 2
    if letter == "[":
        end = pattern.index("]", at + (3 if pattern.startswith("[^", at) else 2)) + 1
        while pattern[end - 2] == "\\":
            end = pattern.index("]", end) + 1
        return "other", "", end
    if letter == "(":
        end = _end_of_group(pattern, at)
        kind = "other" if _LOOKAROUND.match(pattern, at) else "group"
        return kind, re.sub(r"^\((?:\?(?:P<\w+>|[a-z]*:|[a-z]+\)))?", "", pattern[at : end - 1]), end
    return ("other" if letter in ".^$?*+{" else "letter"), letter, at + 1


def _end_of_group(pattern: str, at: int) -> int:
    depth = 0
    while True:
        if pattern[at] in "\\[":
            at = _next_part(pattern, at)[2]
            continue
        depth += {"(": 1, ")": -1}.get(pattern[at], 0)
        at += 1
        if depth == 0:
            return at


def _alternatives(pattern: str) -> Iterator[str]:
    start = at = 0
    while at < len(pattern):
        if pattern[at] == "|":
            yield pattern[start:at]
            start = at + 1
        at = at + 1 if pattern[at] == "|" else _next_part(pattern, at)[2]
    yield pattern[start:]


class RuleIndex(Generic[Owner]):
    """Patterns and their owners, by the first letters of their necessary words."""

    def __init__(self, patterns: Iterable[tuple[Owner, re.Pattern[str]]]) -> None:
        self._patterns = tuple(patterns)
        self._always: list[int] = []
        self._by_letters: dict[str, list[tuple[str, int]]] = defaultdict(list)
        for number, (_, pattern) in enumerate(self._patterns):
            words = necessary_words(pattern.pattern)
            if not words:
                self._always.append(number)
            for word in words:
                self._by_letters[word[:_LETTERS]].append((word, number))

    def candidates(self, line: str) -> list[tuple[Owner, re.Pattern[str]]]:
        """Return the patterns that may match the line, in their order."""
        low = line.lower()
        letters = {low[at : at + _LETTERS] for at in range(len(low) - _LETTERS + 1)}
        found = set(self._always)
        for each in letters & self._by_letters.keys():
            found.update(number for word, number in self._by_letters[each] if word in low)
        return [self._patterns[number] for number in sorted(found)]
