"""Licences of packages: each allowed one in each form, combinations, exceptions and refusals."""

import itertools
from pathlib import Path

import pytest

from trainyard.machine.licences import (
    ALLOWED,
    EXCEPTIONS,
    Allowance,
    DeclaredLicence,
    LicenceFinding,
    LicenceStanding,
    allows,
    judge_licences,
)
from trainyard.machine.package_lock import Pin, read_pins

ROOT = Path(__file__).resolve().parents[3]
COPYLEFT = (
    "AGPL-3.0-only",
    "GPL-2.0-only",
    "GPL-2.0-or-later",
    "GPL-3.0-or-later",
    "LGPL-3.0-only",
    "SSPL-1.0",
)
NOT_FREE = ("LicenseRef-Proprietary", "BUSL-1.1", "CC-BY-NC-4.0", "Elastic-2.0")
UNKNOWN = ("as you like", "Dual License", "MIT-ish", "MIT AND", "(MIT", "")
CLASSIFIED = {
    "MIT License": True,
    "Apache Software License": True,
    "BSD License": True,
    "Mozilla Public License 2.0 (MPL 2.0)": True,
    "GNU General Public License v3 (GPLv3)": False,
    "GNU Affero General Public License v3": False,
    "Other/Proprietary License": False,
    "Free for non-commercial use": False,
}
EVERYWHERE = Pin("thing", "1.0", None, ())


def answer(
    declared: DeclaredLicence | None, pin: Pin = EVERYWHERE, **exceptions: Allowance
) -> LicenceFinding:
    (finding,) = judge_licences([pin], {"thing": declared} if declared else {}, exceptions)
    return finding


def osi(name: str) -> str:
    return f"License :: OSI Approved :: {name}"


@pytest.mark.parametrize("licence", sorted(ALLOWED))
def test_an_allowed_licence_is_allowed_as_expression_and_as_text(licence: str) -> None:
    for declared in (
        DeclaredLicence("1.0", expression=licence),
        DeclaredLicence("1.0", text=licence.lower()),
    ):
        assert answer(declared).standing == LicenceStanding.ALLOWED


@pytest.mark.parametrize("licence", [*COPYLEFT, *NOT_FREE, *UNKNOWN])
def test_every_other_licence_is_refused_with_its_name_and_the_fix(licence: str) -> None:
    for declared in (DeclaredLicence("1.0", expression=licence), DeclaredLicence("1.0", text=licence)):
        found = answer(declared)
        assert found.standing == LicenceStanding.REFUSED
        assert licence in found.reason
        assert "src/trainyard/machine/licences.py" in found.reason


@pytest.mark.parametrize("pair", list(itertools.combinations(sorted(CLASSIFIED), 2)))
def test_every_classifier_must_be_allowed(pair: tuple[str, str]) -> None:
    declared = DeclaredLicence("1.0", classifiers=("License :: OSI Approved", *(osi(name) for name in pair)))
    expected = LicenceStanding.ALLOWED if all(CLASSIFIED[name] for name in pair) else LicenceStanding.REFUSED
    assert answer(declared).standing == expected


@pytest.mark.parametrize(
    ("name", "text"), list(itertools.product(CLASSIFIED, ["MIT", "GPL-3.0-only", "whatever"]))
)
def test_both_text_and_classifier_must_be_allowed(name: str, text: str) -> None:
    expected = LicenceStanding.ALLOWED if CLASSIFIED[name] and text == "MIT" else LicenceStanding.REFUSED
    assert answer(DeclaredLicence("1.0", classifiers=(osi(name),), text=text)).standing == expected


def test_an_expression_replaces_the_classifiers() -> None:
    """Classifiers are deprecated in favour of the expression, and may be less precise."""
    declared = DeclaredLicence(
        "1.0", expression="MIT", classifiers=(osi("Other/Proprietary License"),), text="GPL"
    )
    assert answer(declared).standing == LicenceStanding.ALLOWED


@pytest.mark.parametrize(("first", "rest"), [("MIT License", True), ("GNU GENERAL PUBLIC LICENSE", False)])
def test_a_full_licence_text_is_recognised_by_its_first_line(first: str, rest: bool) -> None:
    found = answer(DeclaredLicence("1.0", text=f"\n   {first}\n\nCopyright 2026\nMIT\n"))
    assert (found.standing == LicenceStanding.ALLOWED) is rest


@pytest.mark.parametrize("operators", list(itertools.product(["AND", "OR"], repeat=3)))
@pytest.mark.parametrize("values", list(itertools.product([True, False], repeat=4)))
def test_and_binds_tighter_than_or(operators: tuple[str, ...], values: tuple[bool, ...]) -> None:
    names = ["MIT" if value else "GPL-3.0-only" for value in values]
    a, b, c, d = values
    first, second, third = (operator.lower() for operator in operators)
    shapes = {
        "{} {} {} {} {} {} {}": f"{a} {first} {b} {second} {c} {third} {d}",
        "({} {} {}) {} ({} {} {})": f"({a} {first} {b}) {second} ({c} {third} {d})",
        "{} {} ({} {} ({} {} {}))": f"{a} {first} ({b} {second} ({c} {third} {d}))",
    }
    words = [*itertools.chain.from_iterable(zip(names, operators, strict=False)), names[-1]]
    for shape, rule in shapes.items():
        assert allows(shape.format(*words)) is bool(eval(rule))


@pytest.mark.parametrize(("licence", "fine"), [("Apache-2.0", True), ("GPL-2.0-only", False)])
def test_a_with_exception_keeps_its_licence_allowed(licence: str, fine: bool) -> None:
    assert allows(f"{licence} WITH Classpath-exception-2.0") is fine
    assert allows(f"MIT AND {licence} WITH Classpath-exception-2.0") is fine


def test_a_package_for_another_platform_is_not_judged() -> None:
    elsewhere = Pin("thing", "1.0", "sys_platform == 'no such platform'", ())
    assert (
        answer(DeclaredLicence("1.0", expression="GPL-3.0-only"), elsewhere).standing
        == LicenceStanding.ELSEWHERE
    )
    assert answer(None, elsewhere).standing == LicenceStanding.ELSEWHERE
    (found,) = judge_licences(
        [elsewhere, EVERYWHERE], {"thing": DeclaredLicence("1.0", expression="MIT")}, {}
    )
    assert found.standing == LicenceStanding.ALLOWED


@pytest.mark.parametrize("declared", [None, DeclaredLicence("2.0", expression="MIT")])
def test_a_package_that_is_not_installed_as_locked_is_refused(declared: DeclaredLicence | None) -> None:
    found = answer(declared)
    assert found.standing == LicenceStanding.REFUSED
    assert "run: make install-dev" in found.reason


def test_an_exception_holds_only_for_the_declared_statements() -> None:
    allowance = Allowance(("Odd License",), "we asked them")
    found = answer(DeclaredLicence("1.0", text="Odd License"), thing=allowance)
    assert (found.standing, found.reason) == (LicenceStanding.EXCEPTED, "we asked them")
    for declared in (DeclaredLicence("1.0", text="Odder License"), DeclaredLicence("1.0")):
        found = answer(declared, thing=allowance)
        assert found.standing == LicenceStanding.REFUSED
        assert "its exception is for a package that declares Odd License" in found.reason


def test_every_exception_is_for_a_locked_package_and_has_a_reason() -> None:
    locks = [ROOT / f"requirements-{name}.txt" for name in ("training", "development")]
    names = {pin.name for lock in locks for pin in read_pins(lock.read_text())}
    assert EXCEPTIONS.keys() - names == set()
    assert [name for name, allowance in EXCEPTIONS.items() if len(allowance.reason) < 20] == []
