"""A kind of store that is registered by one line is known to the configuration, the plans and the gateways.

The line runs in a separate process before anything else is imported, as it would in the file.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from trainyard.config.registries import STORE_SCHEMES

PLANTED = '''
"""A kind of store: the address is a name."""

from trainyard.errors import ConfigError


def open_at(url, rest, options):
    return ("opened", rest, options["call_seconds"])


def require_address(url, rest):
    if not rest:
        raise ConfigError(f"{url}: a name is missing")
'''
PROGRAM = """
import json
from trainyard.config.registries import STORE_SCHEMES, StoreScheme

STORE_SCHEMES["shelf"] = StoreScheme("planted_store", "shelf://[a-z]+", "shelf://[a-z]+", "shelf://name")

from trainyard.config.key_lookup import examples_of
from trainyard.config.schema import ArtifactsConfig
from trainyard.errors import ConfigError
from trainyard.artifacts.store.store_address import names_a_store, open_store, require_address
from trainyard.github.run_plan import _store
from trainyard.github.variables import parse_store


def said(work):
    try:
        return work()
    except (ConfigError, ValueError) as error:
        return str(error)


print(json.dumps({
    "opened": open_store("shelf://top", call_seconds=3.0),
    "named": [names_a_store("shelf://top"), names_a_store("shelf://"), names_a_store("desk://top")],
    "refused": [said(lambda: require_address("shelf://")), said(lambda: require_address("desk://top"))],
    "configured": ArtifactsConfig(store="shelf://top").store,
    "examples": examples_of(("artifacts", "store")),
    "planned": [said(lambda: _store("shelf://top")), said(lambda: _store("desk://top"))],
    "set_up": [said(lambda: parse_store("shelf://top")), said(lambda: parse_store("desk://top"))],
}))
"""
EXAMPLES = "s3://bucket/prefix or file:///folder or shelf://name"


def test_a_store_that_is_registered_by_one_line_is_known_everywhere(tmp_path: Path) -> None:
    (tmp_path / "planted_store.py").write_text(PLANTED)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, cwd=tmp_path, timeout=120
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["opened"] == ["opened", "top", 3.0]
    assert found["named"] == [True, False, False]
    assert found["refused"][0] == "shelf://: a name is missing"
    assert found["refused"][1] == f"desk://top: not a store; write {EXAMPLES}"
    assert found["configured"] == "shelf://top"
    assert found["examples"] == ["s3://bucket/prefix", "file:///folder", "shelf://name"]
    refused = f"TRAINYARD_STORE: 'desk://top' is not a store; write {EXAMPLES}"
    assert found["planned"] == ["shelf://top", refused]
    assert found["set_up"] == ["shelf://top", f"'desk://top' is not a store such as {EXAMPLES}"]


@pytest.mark.parametrize("scheme", STORE_SCHEMES)
def test_the_example_of_a_scheme_is_an_address_of_it(scheme: str) -> None:
    from trainyard.artifacts.store.store_address import names_a_store, require_address

    example = STORE_SCHEMES[scheme].example
    assert example.startswith(f"{scheme}://")
    assert names_a_store(example)
    require_address(example)
