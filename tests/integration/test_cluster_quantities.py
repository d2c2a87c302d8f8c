"""Quantities as we read them and as a real API server does: the same texts are valid, and mean the same."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from tests.integration.control_plane import started

from trainyard.cluster.resource_quantities import NotAQuantityError, thousandths

pytestmark = pytest.mark.slow
NUMBERS = ("0", "1", "1.5", ".5", "5.", "+2", "007", "1.2.3", "", "x", "1 ", "12345678901")
SUFFIXES = (
    "",
    "n",
    "u",
    "m",
    "k",
    "M",
    "G",
    "T",
    "Ki",
    "Mi",
    "Gi",
    "Ti",
    "K",
    "ki",
    "e3",
    "E3",
    "e-3",
    "E",
    "e",
    "i",
)


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with started(tmp_path_factory.mktemp("plane")) as plane:
        yield plane


def kept(plane: Any, text: str) -> str | None:
    """Return `text` as the API server writes it in a quota; None if it refuses it."""
    metadata = {"name": "quota"}
    body = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": metadata,
        "spec": {"hard": {"cpu": text}},
    }
    try:
        answer = plane.request("POST", "/api/v1/namespaces/default/resourcequotas?dryRun=All", body)
    except RuntimeError:
        return None
    return str(answer["spec"]["hard"]["cpu"])


def read(text: str) -> int | None:
    """Thousandths, as we read `text`; no more than the API server keeps."""
    try:
        return min(thousandths(text), 1000 * (2**63 - 1))
    except NotAQuantityError:
        return None


def test_the_same_texts_are_quantities_and_mean_the_same(plane: Any) -> None:
    wrong = []
    for number, suffix in itertools.product(NUMBERS, SUFFIXES):
        text = number + suffix
        theirs = kept(plane, text)
        if read(text) != (None if theirs is None else read(theirs)):  # processors are kept in thousandths
            wrong.append((text, theirs, read(text)))
    assert wrong == []
