"""The command lines of the presets over sampled configurations, compared with the golden ones.

The modules that the presets replaced rendered the same, except verl's values of GSM8K, the 30 minutes
that Megatron-LM waits for a collective, and NeMo's scaled rotary positions.
"""

import json
import os

import pytest
from tests.unit.jobs.plans import ROOT
from tests.unit.jobs.preset_cases import ALL, cases, rendered

GOLDEN = ROOT / "tests" / "golden" / "jobs"
NUMBER = 12


@pytest.mark.parametrize("recipe", ALL)
def test_sampled_configurations_render_what_they_did(recipe: str) -> None:
    made = [
        {"nodes": nodes, "overrides": overrides, **rendered(recipe, nodes, overrides)}
        for nodes, overrides in cases(recipe, NUMBER)
    ]
    text = "[\n" + ",\n".join(json.dumps(each) for each in made) + "\n]\n"
    path = GOLDEN / f"preset-{recipe}.json"
    if os.environ.get("TRAINYARD_WRITE_GOLDEN"):
        path.write_text(text)
    assert path.read_text() == text
