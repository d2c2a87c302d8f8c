"""Read the machines and the records of a running job in its pods, without changing anything there.

exec in every pod: the script of the caller ──> its output, or why there is none
exec in the first pod that answers: run.json, events, the end of the metrics ──> a folder here
"""

import queue
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from trainyard.cluster.fitness import leaving_reason
from trainyard.errors import ServiceError
from trainyard.jobs.job_reader import FoundJob, read_nodes
from trainyard.jobs.state.pod_facts import Place, PodFacts

if TYPE_CHECKING:
    from trainyard.gateways.kubernetes.api import Api

_AT_ONCE = 16
_ASK_AGAIN_SECONDS = 60.0
"""A pod whose last command is still running is asked again after this time."""
_NODES_SECONDS = 30.0
"""Nodes are read again after this time."""
_METRICS_BYTES = 4_000_000
"""The end of metrics.jsonl that is read: some ten thousand rows."""
_RECORD_NAME = re.compile(r"run\.json|config\.yaml|(events|metrics)\.jsonl|logs/rank-\d{1,9}\.json")
_RECORDS = """
cd "$0" || exit 1
for f in run.json config.yaml events.jsonl logs/rank-*.json; do
  [ -f "$f" ] && { echo "@file $f"; cat "$f"; echo; }
done
[ -f metrics.jsonl ] && { echo "@file metrics.jsonl"; tail -c %d metrics.jsonl; }
echo; echo @end
"""


Answer = str | ServiceError | None
"""The output of a command in a pod, why it was refused, or None if the pod did not answer in time."""


class PodReader:
    """Runs commands in the pods of one job, several at a time, each with a time limit."""

    def __init__(
        self, api: "Api", job: FoundJob, *, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`seconds` limits how long a pod may take to answer, because a frozen one never does."""
        self._api, self._job, self._seconds, self._clock = api, job, seconds, clock
        self._running: dict[str, float] = {}
        """Pod -> when its last command was started, while that runs."""
        self._leaving: dict[str, str] = {}
        self._nodes_read: tuple[frozenset[str], float] = frozenset(), 0.0

    def run_script(self, pods: Sequence[PodFacts], script: str) -> "dict[str, Answer]":
        """Return the output of a shell script in each pod, by the name of the pod."""
        return self._answers([pod.name for pod in pods], ["sh", "-c", script])

    def read_records(self, pods: Sequence[PodFacts], folder: Path) -> bool:
        """Write the records of the run into `folder`; return whether a pod had them.

        The pods of the lowest ranks are asked first: the first rank keeps the records.
        """
        words = self._job.plan.program.command if self._job.plan else ()
        directory = next((after for word, after in pairwise(words) if word == "--run-dir"), "")
        if not directory:
            return False
        script = _RECORDS % _METRICS_BYTES
        for pod in sorted(pods, key=lambda pod: (pod.rank is None, pod.rank or 0))[:2]:
            answer = self._answers([pod.name], ["sh", "-c", script, directory])[pod.name]
            if isinstance(answer, str) and _write_records(answer, folder):
                return True
        return False

    def leaving_nodes(self, pods: Sequence[PodFacts]) -> dict[str, str]:
        """Return the nodes of the pods that are about to be replaced, with the reasons.

        Raises ServiceError if nodes may not be read.
        """
        names, now = frozenset(pod.node for pod in pods if pod.node), self._clock()
        if names != self._nodes_read[0] or now - self._nodes_read[1] >= _NODES_SECONDS:
            nodes = sorted(read_nodes(self._api, names).items())
            reasons = {name: leaving_reason(node) if node else "it is gone" for name, node in nodes}
            self._leaving = {name: reason for name, reason in reasons.items() if reason}
            self._nodes_read = names, now
        return self._leaving

    def _answers(self, pods: Sequence[str], command: Sequence[str]) -> "dict[str, Answer]":
        """Run a command in each pod, `_AT_ONCE` at a time; a pod that still runs the last one is silent."""
        answers: queue.Queue[tuple[str, Answer]] = queue.Queue()
        found: dict[str, Answer] = dict.fromkeys(pods)
        started = self._clock() - _ASK_AGAIN_SECONDS
        waiting = deque(pod for pod in pods if self._running.get(pod, started) <= started)
        deadlines: dict[str, float] = {}
        while waiting or deadlines:
            while waiting and len(deadlines) < _AT_ONCE:
                pod = waiting.popleft()
                self._running[pod] = self._clock()
                deadlines[pod] = self._running[pod] + self._seconds
                # A daemon thread, so that a frozen pod does not delay the end of the process either.
                threading.Thread(target=self._ask, args=(pod, command, answers), daemon=True).start()
            first = next(iter(deadlines))
            try:
                pod, answer = answers.get(timeout=max(0.0, deadlines[first] - self._clock()))
            except queue.Empty:
                del deadlines[first]
                continue
            if deadlines.pop(pod, None) is not None:
                found[pod] = answer
        return found

    def _ask(self, pod: str, command: Sequence[str], answers: "queue.Queue[tuple[str, Answer]]") -> None:
        output = bytearray()
        answer: Answer = None
        try:
            with self._api.execute(Place(self._job.namespace, pod), command) as running:
                for channel, piece in running.streams():
                    if channel == running.STDOUT:
                        output += piece
            answer = output.decode(errors="replace")
        except ServiceError as error:
            answer = error
        finally:
            self._running.pop(pod, None)
            answers.put((pod, answer))


def _write_records(answer: str, folder: Path) -> bool:
    """Write the files of an answer of `_RECORDS`; return False for an incomplete answer."""
    files: dict[str, list[str]] = {}
    lines = answer.splitlines()
    if "@end" not in lines[-1:]:
        return False
    for line in lines[:-1]:
        if line.startswith("@file "):
            content = files.setdefault(line.removeprefix("@file "), [])
        elif files:
            content.append(line)
    (folder / "logs").mkdir(exist_ok=True)
    for name, content in files.items():
        if _RECORD_NAME.fullmatch(name):
            (folder / name).write_text("\n".join(content) + "\n", encoding="utf-8")
    return bool(files)
