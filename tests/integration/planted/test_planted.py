"""Finished runs and their stores, damaged from outside: no false green, no crash, no wait.

The things to damage are found by walking real runs; rules state the expected verdicts (`situations`).
A run of the tests takes a share of the situations, always the same one. TRAINYARD_EVERY_SITUATION=classes
takes all of them, with fields that represent their class (`planted_fields`); =1 plants in every single field.
"""

import pytest
from tests.integration.planted.objects import things_of
from tests.integration.planted.planted_fields import UNREADABLE, changes_of
from tests.integration.planted.readers import DISK, STORE
from tests.integration.planted.situations import (
    FORGERIES,
    Situation,
    Verdict,
    of_fields,
    of_mended_fields,
    of_mended_objects,
    of_pairs,
    of_plants,
    of_things,
)
from tests.integration.planted.sweep import EVERY_FIELD, a_share, mistakes
from tests.integration.planted.yard import Yard

from trainyard.errors import DamagedFileError
from trainyard.run.checkpoint_manifest import MANIFEST_NAME
from trainyard.run.untrusted_files import parse_json


def fields_in(name: str, yard: Yard) -> list[Situation]:
    return list(of_fields(name, yard, list(things_of(yard)), every=EVERY_FIELD))


def mended_fields_in(name: str, yard: Yard) -> list[Situation]:
    return list(of_mended_fields(name, yard, list(things_of(yard)), every=EVERY_FIELD))


def test_what_nobody_touched_is_proven_verified_and_restored(yards: dict[str, Yard]) -> None:
    for name, yard in yards.items():
        good = Situation(name, "untouched", lambda _yard: None, *[Verdict.YES] * 4)
        assert list(mistakes([good], {name: yard})) == []


def test_each_file_and_object_with_each_damage(yards: dict[str, Yard]) -> None:
    situations = [each for name, yard in yards.items() for each in of_things(name, list(things_of(yard)))]
    assert len(situations) > 1000
    assert list(mistakes(a_share(situations, 180), yards)) == []


def test_two_damages_are_never_better_than_one(yards: dict[str, Yard]) -> None:
    situations = [
        each
        for name, yard in yards.items()
        for each in of_pairs(list(of_things(name, list(things_of(yard)))))
    ]
    assert len(situations) > 1000
    assert list(mistakes(a_share(situations, 600), yards)) == []


def test_a_statement_without_its_configuration_is_no_statement(yards: dict[str, Yard]) -> None:
    for name in ("resumed", "single"):
        situations = fields_in(name, yards[name])
        without = [each for each in situations if "statement.predicate.config " in each.name]
        assert len(without) > 5
        assert list(mistakes([each for each in without if " missing" in each.name], yards)) == []


def test_each_field_of_each_record_with_each_wrong_value(yards: dict[str, Yard]) -> None:
    situations = [each for name, yard in yards.items() for each in fields_in(name, yard)]
    assert len(situations) > 10_000
    assert list(mistakes(a_share(situations, 4800), yards)) == []


def test_a_value_that_no_reader_may_take_makes_a_document_damaged(yards: dict[str, Yard]) -> None:
    """Therefore such a value need not be planted in every field (`planted_fields`)."""
    name = "run.json"
    record = next(each for each in things_of(yards["plain"]) if (each.place, each.name) == ("disk", name))
    refused = set()
    for change in changes_of(yards["plain"], [record], every=True):
        if change.value_name in UNREADABLE:
            with pytest.raises(DamagedFileError, match=name):
                parse_json(change.make(), name)
            refused.add(change.value_name)
    assert refused == set(UNREADABLE)


def test_each_object_that_is_not_listed_or_lies_beside_the_list(yards: dict[str, Yard]) -> None:
    situations = [
        each for name, yard in yards.items() for each in of_plants(name, yard, list(things_of(yard)))
    ]
    assert list(mistakes(a_share(situations, 36), yards)) == []


@pytest.mark.parametrize("name", [name for name, _, _ in FORGERIES])
def test_what_was_forged_before_it_was_stored(yards: dict[str, Yard], name: str) -> None:
    yard = yards["plain"]
    forged = [each for each in of_plants("plain", yard, []) if each.name.endswith(f": {name}")]
    assert len(forged) == 2
    assert list(mistakes(forged, yards)) == []


def test_each_mended_field_and_object(yards: dict[str, Yard]) -> None:
    """All digests were recomputed: where no command can tell, either answer is right, but it comes soon."""
    objects = [
        each for name, yard in yards.items() for each in of_mended_objects(name, list(things_of(yard)))
    ]
    fields = [each for name, yard in yards.items() for each in mended_fields_in(name, yard)]
    assert len(objects) > 500
    assert len(fields) > 5000
    assert list(mistakes([*a_share(objects, 300), *a_share(fields, 4800)], yards)) == []


def test_a_removed_checkpoint_is_compared_with_the_events(yards: dict[str, Yard]) -> None:
    """Nothing else on the disk shows what its manifest was when the store has another one."""
    yard = yards["resumed"]
    objects = of_mended_objects("resumed", list(things_of(yard)))
    replaced = [each for each in objects if f"/{MANIFEST_NAME}: " in each.name]
    assert not yard.run.checkpoint(4).exists()
    assert sum("/checkpoint-4/" in each.name for each in replaced) > 3
    assert list(mistakes(replaced, yards)) == []


def test_each_wrong_name_of_an_image(yards: dict[str, Yard]) -> None:
    """A proof asks the registry that a record names, which anybody may have written."""
    yard = yards["in_image"]
    images = [each for each in mended_fields_in("in_image", yard) if "run.json: image_" in each.name]
    assert len(images) > 10
    assert list(mistakes(a_share(images, 9), yards)) == []


def test_every_other_reader_of_a_damaged_run_or_store(yards: dict[str, Yard]) -> None:
    yard = yards["followed"]
    things = list(things_of(yard))
    situations = [*a_share(list(of_things("followed", things)), 180)]
    situations += a_share(fields_in("followed", yard), 3600)
    for situation in situations:
        require_usable_answers(yard, situation)


def test_a_list_where_a_run_says_one_thing_is_no_crash_of_any_reader(yards: dict[str, Yard]) -> None:
    """A list cannot be looked up in a dictionary; a text with wrong content can."""
    for name in ("followed", "foreign"):
        own = [each for each in fields_in(name, yards[name]) if each.name.startswith("disk run.json: ")]
        lists = [each for each in own if each.name.endswith(" a list") and each.name.count(".") <= 2]
        assert "disk run.json: outcome.status a list" in {each.name for each in lists}
        for situation in lists:
            require_usable_answers(yards[name], situation)


def require_usable_answers(yard: Yard, situation: Situation) -> None:
    """Check every reader of the damaged place that `mistakes` does not call."""
    readers = DISK if situation.name.startswith("disk ") else STORE
    with yard.damaged(situation.plant) as damaged:
        for name, ask in readers.items():
            answer = ask(damaged)
            assert answer.code in (0, 1, 2, 4), (name, situation.name, answer)
