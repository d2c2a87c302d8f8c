"""Finished runs and their stores, damaged from outside: no false green, no crash, no wait.

What there is to damage is found by walking real runs; the verdict that must follow is a rule (`situations`).
A run of the tests takes a share of some ten thousand situations, always the same one;
TRAINYARD_EVERY_SITUATION=1 takes all of them, which is some hours.
"""

import os
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from tests.integration.planted.judging import HUNG, Answer, prove, restore, verify
from tests.integration.planted.objects import things_of
from tests.integration.planted.situations import (
    FORGERIES,
    Situation,
    Verdict,
    of_fields,
    of_plants,
    of_things,
)
from tests.integration.planted.yard import Yard, make_all

EVERY = os.environ.get("TRAINYARD_EVERY_SITUATION") == "1"


@pytest.fixture(scope="session")
def yards(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Yard]:
    return make_all(tmp_path_factory.mktemp("yards"))


@pytest.fixture(autouse=True)
def outside_actions(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GITHUB_ACTIONS", "GITHUB_OUTPUT"):
        monkeypatch.delenv(name, raising=False)


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


def a_share(situations: list[Situation], of: int) -> list[Situation]:
    """One of so many, by a digest of the name: the same ones each time."""
    chosen = [each for each in situations if zlib.crc32(f"{each.yard} {each.name}".encode()) % of == 0]
    return situations if EVERY else chosen


def mistakes(situations: Iterable[Situation], yards: dict[str, Yard]) -> Iterator[str]:
    """Each answer that breaks its rule, in words."""
    for situation in situations:
        for command, verdict, call in (
            ("prove", situation.prove, prove),
            ("verify --run-dir", situation.verify, verify),
            ("verify", situation.store_alone, lambda yard: verify(yard, disk=False)),
            ("restore", situation.restore, restore),
        ):
            if verdict is not None:
                answer = _answer(yards[situation.yard], situation, call)
                if (mistake := _mistake(verdict, answer)) is not None:
                    yield f"{mistake}: {command}: {situation.yard}: {situation.name}\n{answer.said[-400:]}"


def _answer(yard: Yard, situation: Situation, call: Callable[[Yard], Answer]) -> Answer:
    path: Path = yard.path.parent / "copy"
    copy = yard.copy_to(path)
    try:
        situation.plant(copy)
        return call(copy)
    finally:
        shutil.rmtree(path)


def _mistake(verdict: Verdict, answer: Answer) -> str | None:
    if answer.code == HUNG:
        return "it waited"
    if answer.code not in (0, 1, 2):
        return f"exit code {answer.code}"
    if verdict is Verdict.NO and answer.code == 0:
        return "a false yes"
    return "a false no" if verdict is Verdict.YES and answer.code != 0 else None
