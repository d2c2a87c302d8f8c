"""Which runs are compared: those of the same data, and without data those of the same command."""

import hashlib
import itertools
from pathlib import Path

from trainyard.config.load import config_sha256, dump_yaml, load_config
from trainyard.proof.stored_runs import compared_inputs, config_digests

ROOT = Path(__file__).resolve().parents[3]


def test_programs_without_data_are_told_apart_by_their_command() -> None:
    runs = {
        (data, command): {"data": {"fingerprint": data, "files": files}, "program_sha256": command}
        for (data, files), command in itertools.product((("empty", 0), ("a", 2), ("b", 2)), ("x", "y"))
    }
    for (one, first), (other, second) in itertools.product(runs.items(), repeat=2):
        is_same = one[0] == other[0] and (one[0] != "empty" or one[1] == other[1])
        assert (compared_inputs(first) == compared_inputs(second)) is is_same, (one, other)
    assert None in compared_inputs({})
    assert compared_inputs({"data": {"fingerprint": "a", "tokens": 5}}) == ("a", ""), "our own trainer"


def test_a_configuration_is_known_by_its_values_and_by_its_bytes() -> None:
    config = load_config(ROOT / "configs" / "smoke.yaml").config
    content = dump_yaml(config).encode()
    assert config_digests(content) == {config_sha256(config), hashlib.sha256(content).hexdigest()}
    assert config_digests(None) == frozenset()
