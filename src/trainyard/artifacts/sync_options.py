"""Define the command line of a sync: its options and which of them exclude each other. Pure."""

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Sequence
from pathlib import Path

_ENCRYPTIONS = ("AES256", "aws:kms", "none")
_FOLLOW = "at lowest priority beside the trainer: store each checkpoint once complete, the rest at the end"


def parse_sync_options(
    parser: ArgumentParser,
    argv: Sequence[str] | None,
    duration: Callable[[str], float],
    *,
    seconds: Callable[[str], float] = float,
) -> Namespace:
    """Read the options; `duration` reads `8h`, `25m` or `90s` as seconds, `seconds` a time limit."""
    _add_options(parser, duration, seconds)
    args = parser.parse_args(argv)
    if (reason := _impossible(args)) is not None:
        parser.error(reason)
    return args


def _add_options(
    parser: ArgumentParser, duration: Callable[[str], float], seconds: Callable[[str], float]
) -> None:
    what, where = (parser.add_mutually_exclusive_group(required=required) for required in (True, False))
    what.add_argument("--run-dir", type=Path, help="the run's directory")
    what.add_argument("--checkpoint", type=Path, help="a checkpoint (file or directory) in no run directory")
    parser.add_argument("--metrics", type=Path, help="with --checkpoint: its metrics, JSON or JSON lines")
    where.add_argument("--store", help="s3://bucket/prefix or file:///folder")
    where.add_argument("--s3-bucket", dest="store", type="s3://{}".format, help="short for --store s3://NAME")
    parser.add_argument("--run-number", default="auto", help="N, or auto: the number it has, else a free one")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--once", action="store_true", help="one pass; this is also the default")
    how.add_argument("--follow", action="store_true", help=_FOLLOW)
    how.add_argument("--dry-run", action="store_true", help="say what would be sent, send nothing")
    for flag, help_ in (
        ("--silence", "with --follow: how long a run may write nothing, 30m"),
        ("--outage", "with --follow: how long the store may be away, 30m"),
    ):
        parser.add_argument(flag, type=duration, default=1800.0, metavar="DURATION", help=help_)
    behind = "with --follow: run in the background; process id in FILE, output in FILE.log"
    parser.add_argument("--behind", type=Path, metavar="FILE", help=behind)
    parser.add_argument("--max-rate", type=float, default=200, help="with --follow: MB read per second, 200")
    parser.add_argument("--encryption", type=_encryption, choices=_ENCRYPTIONS, help="requested from S3")
    checksums, of = ("CRC64NVME", "SHA256"), "computed by S3 for files above 64 MiB: CRC64NVME"
    parser.add_argument("--checksum", choices=checksums, default=checksums[0], help=of)
    parser.add_argument("--call-seconds", type=seconds, default=30, help="time limit of a read or write, 30")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def _encryption(text: str) -> str:
    if text in _ENCRYPTIONS:
        return text
    raise ArgumentTypeError(
        f"{text!r} is none of {', '.join(_ENCRYPTIONS)}. For a KMS key of your own, make it the "
        "bucket's default key and give none"
    )


def _impossible(args: Namespace) -> str | None:
    """Return why these options cannot be combined; None if they can."""
    if args.checkpoint and not args.metrics:
        return "--checkpoint needs --metrics, the metrics that belong to it"
    if args.follow and args.checkpoint:
        return "--follow needs --run-dir: a checkpoint alone does not go on"
    if args.behind and not args.follow:
        return "--behind needs --follow, because every other mode ends by itself"
    if not 0 < args.max_rate < float("inf"):
        return "--max-rate must be a finite number above 0"
    return None
