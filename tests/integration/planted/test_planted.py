"""Finished runs and their stores, damaged from outside: no false green, no crash, no wait.

What there is to damage is found by walking real runs; the verdict that must follow is a rule (`situations`).
A run of the tests takes a share of some ten thousand situations, always the same one;
TRAINYARD_EVERY_SITUATION=1 takes all of them, which is some hours.
"""

import pytest
from tests.integration.planted.objects import things_of
from tests.integration.planted.situations import (
    FORGERIES,
    Situation,
    Verdict,
    of_fields,
    of_plants,
    of_things,
)
from tests.integration.planted.sweep import a_share, mistakes
from tests.integration.planted.yard import Yard


def test_what_nobody_touched_is_proven_verified_and_restored(yards: dict[str, Yard]) -> None:
    for name, yard in yards.items():
        good = Situation(name, "untouched", lambda _yard: None, *[Verdict.YES] * 4)
        assert list(mistakes([good], {name: yard})) == []


def test_each_file_and_object_with_each_damage(yards: dict[str, Yard]) -> None:
    situations = [each for name, yard in yards.items() for each in of_things(name, list(things_of(yard)))]
    assert len(situations) > 1000
    assert list(mistakes(a_share(situations, 60), yards)) == []


def test_each_field_of_each_record_with_each_wrong_value(yards: dict[str, Yard]) -> None:
    yard = yards["followed"]
    situations = list(of_fields("followed", yard, list(things_of(yard))))
    assert len(situations) > 1000
    assert list(mistakes(a_share(situations, 400), yards)) == []


def test_each_object_that_is_not_listed_or_lies_beside_the_list(yards: dict[str, Yard]) -> None:
    situations = [
        each for name, yard in yards.items() for each in of_plants(name, yard, list(things_of(yard)))
    ]
    assert list(mistakes(a_share(situations, 12), yards)) == []


@pytest.mark.parametrize("name", [name for name, _, _ in FORGERIES])
def test_what_was_forged_before_it_was_stored(yards: dict[str, Yard], name: str) -> None:
    yard = yards["plain"]
    forged = [each for each in of_plants("plain", yard, []) if each.name == f"everywhere: {name}"]
    assert len(forged) == 1
    assert list(mistakes(forged, yards)) == []
