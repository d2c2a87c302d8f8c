"""The number of a manifest's form is a whole number, and the one that this version reads."""

import json
from typing import Any

import pytest

from trainyard.artifacts.record.manifest import parse_run_manifest
from trainyard.errors import CheckpointError, VerificationError
from trainyard.run.checkpoint_manifest import parse_checkpoint_manifest as parse_own_manifest

RUN = {"run_id": "run-a", "run_number": 1, "created": 1.0, "objects": []}
OWN = {"step": 4, "run_id": "run-a", "created": 1.0, "files": []}


def test_this_form_is_read() -> None:
    assert parse_run_manifest(json.dumps({"schema": 1, **RUN}).encode(), "m").run_id == "run-a"
    assert parse_own_manifest(json.dumps({"schema": 1, **OWN}).encode(), "m").step == 4


@pytest.mark.parametrize("schema", [True, 1.0, 2, "1", None, [1]])
def test_what_only_equals_the_number_of_a_form_is_refused(schema: Any) -> None:
    with pytest.raises(VerificationError):
        parse_run_manifest(json.dumps({"schema": schema, **RUN}).encode(), "m")
    with pytest.raises(CheckpointError):
        parse_own_manifest(json.dumps({"schema": schema, **OWN}).encode(), "m")
