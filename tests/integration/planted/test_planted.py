"""Finished runs and their stores, damaged from outside: no false green, no crash, no wait.

The things to damage are found by walking real runs; rules state the expected verdicts (`situations`).
A run of the tests takes a share of the situations, always the same one; TRAINYARD_EVERY_SITUATION=1 all of
them. Fields of records with wrong values are in tests/unit/proof.
"""

import os
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping

from tests.cases import each_case
from tests.integration.planted.judging import DISK, HUNG, STORE, Answer, prove, restore, sync, verify
from tests.integration.planted.objects import things_of
from tests.integration.planted.situations import (
    FORGERIES,
    Situation,
    Verdict,
    of_mended_objects,
    of_plants,
    of_things,
)
from tests.integration.planted.yard import Yard

from trainyard.run.checkpoint_manifest import MANIFEST_NAME

EVERY = os.environ.get("TRAINYARD_EVERY_SITUATION") == "1"


def a_share(situations: list[Situation], of: int) -> list[Situation]:
    """About one situation in `of`, by a checksum of its name without run ids: always the same."""
    names = [re.sub(r"\d{8}-\d{6}-\w{4}", "", f"{each.yard} {each.name}").encode() for each in situations]
    return [each for each, name in zip(situations, names, strict=True) if EVERY or zlib.crc32(name) % of == 0]


def mistakes(situations: Iterable[Situation], yards: Mapping[str, Yard]) -> Iterator[str]:
    """Each answer that breaks its rule, in words."""
    for situation in situations:
        with yards[situation.yard].damaged(situation.plant) as damaged:
            for command, verdict, call in (
                ("sync", situation.sync, sync),
                ("verify", situation.store_alone, lambda yard: verify(yard, disk=False)),
                ("verify --run-dir", situation.verify, verify),
                ("restore", situation.restore, restore),
                ("prove", situation.prove, prove),
            ):
                answer = call(damaged) if verdict is not None else None
                if verdict and answer and (mistake := _mistake(verdict, answer)) is not None:
                    yield f"{mistake}: {command}: {situation.yard}: {situation.name}\n{answer.said[-400:]}"


def _mistake(verdict: Verdict, answer: Answer) -> str | None:
    if answer.code == HUNG:
        return "it waited"
    if answer.code not in (0, 1, 2):
        return f"exit code {answer.code}"
    if verdict is Verdict.NO and answer.code == 0:
        return "a false yes"
    return "a false no" if verdict is Verdict.YES and answer.code != 0 else None


def test_what_nobody_touched_is_proven_verified_and_restored(yards: dict[str, Yard]) -> None:
    for name, yard in yards.items():
        good = Situation(name, "untouched", lambda _yard: None, *[Verdict.YES] * 4)
        assert list(mistakes([good], {name: yard})) == []


def test_each_file_and_object_with_each_damage(yards: dict[str, Yard]) -> None:
    situations = [each for name, yard in yards.items() for each in of_things(name, list(things_of(yard)))]
    assert len(situations) > 1000
    assert list(mistakes(a_share(situations, 180), yards)) == []


def test_each_object_that_is_not_listed_or_lies_beside_the_list(yards: dict[str, Yard]) -> None:
    situations = [
        each for name, yard in yards.items() for each in of_plants(name, yard, list(things_of(yard)))
    ]
    assert list(mistakes(a_share(situations, 36), yards)) == []


@each_case("name", [name for name, _, _ in FORGERIES])
def test_what_was_forged_before_it_was_stored(yards: dict[str, Yard], name: str) -> None:
    yard = yards["plain"]
    forged = [each for each in of_plants("plain", yard, []) if each.name.endswith(f": {name}")]
    assert len(forged) == 2
    assert list(mistakes(forged, yards)) == []


def test_a_removed_checkpoint_is_compared_with_the_events(yards: dict[str, Yard]) -> None:
    """Nothing else on the disk shows what its manifest was when the store has another one."""
    yard = yards["resumed"]
    objects = of_mended_objects("resumed", list(things_of(yard)))
    replaced = [each for each in objects if f"/{MANIFEST_NAME}: " in each.name]
    assert not yard.run.checkpoint(4).exists()
    assert sum("/checkpoint-4/" in each.name for each in replaced) > 3
    assert list(mistakes(a_share(replaced, 3), yards)) == []


def test_every_other_reader_of_a_damaged_run_or_store(yards: dict[str, Yard]) -> None:
    yard = yards["followed"]
    things = list(things_of(yard))
    for situation in a_share(list(of_things("followed", things)), 90):
        require_usable_answers(yard, situation)


def require_usable_answers(yard: Yard, situation: Situation) -> None:
    """Check every reader of the damaged place that `mistakes` does not call."""
    readers = DISK if situation.name.startswith("disk ") else STORE
    with yard.damaged(situation.plant) as damaged:
        for name, ask in readers.items():
            answer = ask(damaged)
            assert answer.code in (0, 1, 2, 4), (name, situation.name, answer)
