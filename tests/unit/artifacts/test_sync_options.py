"""The options of a sync, and what they forbid each other."""

from argparse import ArgumentParser

import pytest

from trainyard.artifacts.sync_options import parse_sync_options
from trainyard.command import duration


def test_a_bucket_is_short_for_a_store_and_times_have_units() -> None:
    line = ["--run-dir", "runs/a", "--s3-bucket", "models", "--follow", "--outage", "5m"]
    args = parse_sync_options(ArgumentParser(), line, duration)
    assert (args.store, args.outage, args.silence, args.run_number) == ("s3://models", 300, 1800, "auto")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (["--checkpoint", "c"], "--checkpoint needs --metrics"),
        (["--checkpoint", "c", "--metrics", "m", "--follow"], "--follow needs --run-dir"),
        (["--run-dir", "r", "--max-rate", "0"], "--max-rate must be a finite number above 0"),
        (["--run-dir", "r", "--once", "--behind", "f"], "--behind needs --follow"),
        (["--run-dir", "r", "--follow", "--once"], "not allowed with argument"),
        (["--run-dir", "r", "--encryption", "arn:aws:kms:eu-west-1:1:key/2"], "make it the bucket's default"),
    ],
)
def test_what_does_not_go_together_is_refused(
    line: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        parse_sync_options(ArgumentParser(), line, duration)
    assert stopped.value.code == 2
    assert reason in capsys.readouterr().err
