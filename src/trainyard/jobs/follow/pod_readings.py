"""Read the machines and the records of a running job in its pods, without changing anything there.

exec in every pod: the script of the caller ──> its output, or why there is none
exec in the first pod that answers: run.json, events, the end of the metrics ──> a folder here
"""

import queue
import re
import threading
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from trainyard.cluster.api_objects import node_of
from trainyard.cluster.fitness import leaving_reason
from trainyard.cluster.object_path import path_part
from trainyard.errors import ConfigError, ServiceError
from trainyard.jobs.job_plan import JobPlan
from trainyard.jobs.job_reader import FoundJob
from trainyard.jobs.state.pod_facts import PodFacts
from trainyard.jobs.volumes.checkpoint_search import plan_of
from trainyard.jobs.volumes.helper_pod import Place

if TYPE_CHECKING:
    from trainyard.gateways.kubernetes.api import Api

_AT_ONCE = 16
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

    def __init__(self, api: "Api", job: FoundJob, *, seconds: float) -> None:
        """`seconds` is how long a pod may take to answer: a frozen one never does."""
        self._api, self._job, self._seconds = api, job, seconds

    def run_script(self, pods: Sequence[PodFacts], script: str) -> "dict[str, Answer]":
        """Return the output of a shell script in each pod, by the name of the pod."""
        answers: dict[str, Answer] = {}
        for start in range(0, len(pods), _AT_ONCE):
            names = [pod.name for pod in pods[start : start + _AT_ONCE]]
            answers |= self._answers(names, ["sh", "-c", script])
        return answers

    def read_records(self, pods: Sequence[PodFacts], folder: Path) -> bool:
        """Write the records of the run into `folder`; return whether a pod had them.

        The pods of the lowest ranks are asked first: the first rank keeps the records.
        """
        directory = run_directory_of(self._job)
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
        found = dict[str, str]()
        for name in sorted({pod.node for pod in pods if pod.node}):
            raw = self._api.get(f"/api/v1/nodes/{path_part(name)}")
            reason = "it is gone" if raw is None else leaving_reason(node_of(raw))
            found |= {name: reason} if reason else {}
        return found

    def _answers(self, pods: Sequence[str], command: Sequence[str]) -> "dict[str, Answer]":
        answers: queue.Queue[tuple[str, Answer]] = queue.Queue()
        for pod in pods:
            # A daemon: the answer of a frozen pod is not waited for, also not at the end of the process.
            threading.Thread(target=self._ask, args=(pod, command, answers), daemon=True).start()
        found: dict[str, Answer] = dict.fromkeys(pods)
        with suppress(queue.Empty):
            for _ in pods:
                pod, found[pod] = answers.get(timeout=self._seconds)
        return found

    def _ask(self, pod: str, command: Sequence[str], answers: "queue.Queue[tuple[str, Answer]]") -> None:
        output = bytearray()
        try:
            with self._api.execute(Place(self._job.namespace, pod), command) as running:
                for channel, piece in running.streams():
                    if channel == running.STDOUT:
                        output += piece
        except ServiceError as error:
            answers.put((pod, error))
        else:
            answers.put((pod, output.decode(errors="replace")))


def run_directory_of(job: FoundJob) -> str:
    """Return the folder of the run in the job's pods; empty if its program keeps no record of its run."""
    try:
        plan: JobPlan = plan_of(job.raw)
    except ConfigError:
        return ""
    return next((after for word, after in pairwise(plan.program.command) if word == "--run-dir"), "")


def gpus_requested(job: FoundJob) -> bool:
    """Return whether the pods of the job requested GPUs; a job that is not ours may have."""
    try:
        return plan_of(job.raw).resources.gpus > 0
    except ConfigError:
        return True


def instance_type_of(job: FoundJob) -> str:
    """Return the instance type that the job requested; empty if it did not name one."""
    try:
        return plan_of(job.raw).instance_type
    except ConfigError:
        return ""


def _write_records(answer: str, folder: Path) -> bool:
    """Write the files of an answer of `_RECORDS`; an incomplete answer is no answer."""
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
