"""tools/write_failure_reference.py: the runbook is current, and has each class."""

import importlib
from pathlib import Path

from trainyard.command import handler
from trainyard.watch.failure_classes import FailureClass
from trainyard.watch.failure_logs.failure_explanation import table

ROOT = Path(__file__).parents[2]


def test_the_runbook_of_this_checkout_is_current_and_complete() -> None:
    script = importlib.import_module("write_failure_reference")
    assert handler.exit_code_of(lambda: int(script.main(["--check"]))) == 0
    page = script.generated()[script.REFERENCE]
    known = {row["class"] for row in (*table()["rows"], *table()["exceptions"])}
    assert known <= set(script.MEANINGS) <= {str(klass) for klass in FailureClass}
    assert not [klass for klass in known if f"| `{klass}` |" not in page]
