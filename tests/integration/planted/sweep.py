"""Plant situations one by one and collect the answers that break their rule."""

import os
import zlib
from collections.abc import Iterable, Iterator, Mapping

from tests.integration.planted.judging import HUNG, Answer, prove, restore, sync, verify
from tests.integration.planted.situations import Situation, Verdict
from tests.integration.planted.yard import Yard

# Plant every situation, not only a share.
EVERY = os.environ.get("TRAINYARD_EVERY_SITUATION") == "1"


def a_share(situations: list[Situation], of: int) -> list[Situation]:
    """About one situation in `of`, chosen by a checksum of its name: the same ones each time."""
    chosen = [each for each in situations if zlib.crc32(f"{each.yard} {each.name}".encode()) % of == 0]
    return situations if EVERY else chosen


def mistakes(situations: Iterable[Situation], yards: Mapping[str, Yard]) -> Iterator[str]:
    """Each answer that breaks its rule, in words."""
    for situation in situations:
        with yards[situation.yard].damaged(situation.plant) as damaged:
            for command, verdict, call in (
                ("sync", situation.sync, sync),
                ("verify", situation.store_alone, lambda yard: verify(yard, disk=False)),
                ("verify --run-dir", situation.verify, verify),
                ("restore", situation.restore, restore),
                ("prove", situation.prove, prove),
            ):
                answer = call(damaged) if verdict is not None else None
                if verdict and answer and (mistake := _mistake(verdict, answer)) is not None:
                    yield f"{mistake}: {command}: {situation.yard}: {situation.name}\n{answer.said[-400:]}"


def _mistake(verdict: Verdict, answer: Answer) -> str | None:
    if answer.code == HUNG:
        return "it waited"
    if answer.code not in (0, 1, 2):
        return f"exit code {answer.code}"
    if verdict is Verdict.NO and answer.code == 0:
        return "a false yes"
    return "a false no" if verdict is Verdict.YES and answer.code != 0 else None
