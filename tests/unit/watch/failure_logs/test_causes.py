"""The table of causes: every rule has a message of its own and refuses one that only looks like it."""

import re
from collections.abc import Iterator
from itertools import islice, product
from re import _constants as code  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

from tests.cases import each_case

from trainyard.watch.failure_logs.evidence_rules import Nearness, rules, table
from trainyard.watch.failure_logs.log_explanation import LogExplanation, explain_logs, log_of
from trainyard.watch.failure_logs.rule_index import RuleIndex, necessary_words

ROWS = table()
NAMES = [row["cause"] for row in ROWS]
WHO = {"program", "configuration", "image", "node", "network", "cluster", "cloud", "github", "person"}
BEGIN = 'Traceback (most recent call last):\n  File "train.py", line 88, in <module>\n    main()\n'


def explained(row: dict[str, Any], text: str) -> LogExplanation:
    begin = BEGIN if row["level"] == "raised" else ""
    return explain_logs([log_of("train.log", begin + text)], 1)


def is_of(row: dict[str, Any], found: LogExplanation) -> bool:
    parts = [re.escape(part) for part in re.split(r"\{\w+\}", row["cause"])]
    return re.fullmatch(".+".join(parts), found.cause) is not None


@each_case("row", ROWS, ids=NAMES)
def test_a_rule_explains_its_example_and_not_the_line_that_is_unlike_it(row: dict[str, Any]) -> None:
    found = explained(row, row["example"])
    assert (str(found.klass), found.who) == (row["class"], row["who"]), found
    assert is_of(row, found) and "{" not in found.fix and found.fix
    assert (found.retryable, found.other_node) == (row["retry"] in ("same", "later"), row["retry"] == "other")
    assert not is_of(row, explained(row, row["unlike"]))


@each_case("row", ROWS, ids=NAMES)
def test_a_row_is_complete(row: dict[str, Any]) -> None:
    needed = {"cause", "class", "level", "who", "retry", "fix", "match", "example", "unlike"}
    assert needed <= set(row) <= {*needed, "after", "exact", "plain"}
    assert row["who"] in WHO and row["retry"] in ("no", "same", "other", "later")


def messages(pattern: Any) -> Iterator[str]:
    """The shortest messages that a pattern matches, at least one for each of its alternatives."""
    parts = [list(islice(part_messages(*part), 200)) for part in pattern]
    longest = max((len(part) for part in parts), default=0)
    for number in range(longest):
        yield "".join(part[number % len(part)] for part in parts)


def part_messages(operation: Any, value: Any) -> Iterator[str]:
    if operation is code.LITERAL:
        yield chr(value)
    elif operation is code.BRANCH:
        for branch in value[1]:
            yield from messages(branch)
    elif operation is code.SUBPATTERN:
        yield from messages(value[-1])
    elif operation in (code.MAX_REPEAT, code.MIN_REPEAT):
        yield from ("".join(each) for each in product(*[list(messages(value[2]))[:1]] * value[0]))
    elif operation is code.IN:
        yield next((chr(item[1]) for item in value if item[0] is code.LITERAL), "7")
    else:
        yield ""


@each_case("rule", rules(), ids=NAMES)
def test_the_index_hides_no_form_of_a_message(rule: Any) -> None:
    for pattern in rule.patterns:
        words = necessary_words(pattern.pattern)
        forms = list(messages(_parser.parse(pattern.pattern)))
        assert words and forms
        assert [form for form in forms if not any(word in form.lower() for word in words)] == []


def test_the_index_finds_what_may_match_and_little_else() -> None:
    patterns = ["a(?:bcd|def)g+h*i", r"x[yz]{2}\bword(?= next)", "(?i)One|(?:two)?three", r"\d+"]
    index = RuleIndex((each, re.compile(each)) for each in patterns)
    assert [necessary_words(each) for each in patterns] == [{"bcd", "def"}, {"word"}, {"one", "three"}, set()]
    assert [name for name, _ in index.candidates("xyy word")] == [patterns[1], patterns[3]]
    assert [name for name, _ in index.candidates("ONE")] == [patterns[2], patterns[3]]


def test_no_figure_of_a_message_stays_open() -> None:
    """A cause that names a figure gets it from the example of its message."""
    row = next(row for row in ROWS if row["cause"].startswith("another process ({pid})"))
    text = explained(row, row["example"])
    assert text.cause == "another process (8123) holds 70.20 GiB of the GPU's memory" and text.other_node
    assert all("?" not in explained(row, row["example"]).cause for row in ROWS)


def test_a_consequence_never_wins_over_a_cause() -> None:
    """Whatever the order of the lines; the job waiting for its start is neither."""
    of = {level: [row for row in ROWS if row["level"] == level] for level in ("platform", "cause", "symptom")}
    later = [row for row in ROWS if row["level"] in ("communication", "wait", "aftermath")]
    wrong = []
    for row in of["platform"] + [r for r in of["cause"] if r.get("exact")]:
        for other in later:
            for text in (f"{row['example']}\n{other['example']}", f"{other['example']}\n{row['example']}"):
                found = explained(row, text)
                if str(found.klass) not in (row["class"], "unknown"):
                    wrong.append((row["cause"], other["cause"], found.cause))
    assert not wrong


def test_the_levels_are_in_the_order_of_nearness() -> None:
    assert [level.name for level in sorted(Nearness)][:4] == ["PLATFORM", "CAUSE", "SYMPTOM", "RAISED"]
    assert len(rules()) == len(ROWS) == len(set(NAMES)), "two rules have the same cause"
