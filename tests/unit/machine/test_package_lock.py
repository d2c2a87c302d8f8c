"""Reading a lock and comparing it with what is installed."""

import pytest

from trainyard.errors import ConfigError
from trainyard.machine.package_lock import Pin, compare_versions, read_pins

HASH = "a" * 64
LOCK = f"""\
# input-sha256: 00
Absl_Py==2.5.1 \\
    --hash=sha256:{HASH} \\
    --hash=sha256:{"b" * 64}
    # via tensorboard
triton==3.7.0 ; platform_machine == 'x86_64' and sys_platform == 'linux' \\
    --hash=sha256:{HASH}
    # via
    #   torch
bare==1.0
"""


def test_pins_carry_name_version_and_marker() -> None:
    assert read_pins(LOCK) == (
        Pin("absl-py", "2.5.1", None),
        Pin("triton", "3.7.0", "platform_machine == 'x86_64' and sys_platform == 'linux'"),
        Pin("bare", "1.0", None),
    )


def test_a_requirement_that_is_not_pinned_is_refused() -> None:
    for line in ("torch>=2.13", "torch", "torch @ https://example.org/torch.whl", "torch==2.* x"):
        with pytest.raises(ConfigError, match="not pinned"):
            read_pins(line)


def test_options_and_comments_are_not_pins() -> None:
    assert read_pins("--index-url https://example.org\n# a comment\n") == ()


def test_wrong_and_missing_packages_are_named_with_both_versions() -> None:
    assert compare_versions(read_pins("a==1\nb==2\n"), {"a": "1", "b": "2", "extra": "9"}) == ()
    pins = read_pins("zz==1\na==1\nb==2 ; sys_platform == 'never'\n")
    assert compare_versions(pins, {"zz": "3"}) == ("a 1 missing", "zz 3 instead of 1")
