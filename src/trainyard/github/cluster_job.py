"""A training job on a cluster: its plan, passed between the jobs of `deploy_eks.yml`, and its deployment.

    send ──> pending ──its end is seen──> success | failure
                │ ^
                │ └──watch_eks.yml sees the end, and dispatches a run that reports it──┐
                └──not ended yet──> in_progress ───────────────────────────────────────┘

A deployment is GitHub's record of something that was deployed from a commit, with a history of statuses. It
outlives workflow runs and their runners, so that a job of days needs no run that waits for it. This module
does not contact the cluster.
"""

import calendar
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, ValidationError

from trainyard.errors import ConfigError

if TYPE_CHECKING:
    from trainyard.gateways.github_api import GitHub

Json = Mapping[str, Any]
WORKFLOW, POLL = "deploy_eks.yml", "watch_eks.yml"
TASK, ENVIRONMENT = "trainyard", "eks"
FINAL = ("success", "failure", "error", "inactive")
LOST_SECONDS = 7 * 3600.0
"""A run that has not reported for this long is lost: GitHub ends jobs on its machines after 6 hours."""
MOST_RUNS = 5
"""A job is given up after this many runs that did not see its end: something else is broken."""
NEWEST = 100
"""How many deployments a poll reads."""


class JobDeployment(BaseModel):
    """The JSON in `TRAINYARD_PLAN` and in a deployment's payload: a job's name, and what it was asked for."""

    model_config = ConfigDict(frozen=True, strict=True)

    job: str
    run_id: str = ""
    """The id of the run that the job trains; empty: the name of the job."""
    kind: str
    namespace: str
    image: str
    store: str
    cluster: str
    """Empty for the kubeconfig's cluster."""
    region: str
    config: str
    changes: tuple[str, ...] = ()
    nodes: str = "1"
    gpus: str = ""
    """GPUs of a pod; empty for all GPUs of a node."""
    instance_type: str = ""
    accept: tuple[str, ...] = ()
    """Parts of the proof that may be missing, and checks of the cluster that may fail."""
    auto_retry: str = "0"
    """How often the job may be sent again after a failure."""
    thread: str = ""
    """The job's thread in Slack, CHANNEL:TS."""
    deployment: int = 0

    def to_text(self) -> str:
        return self.model_dump_json()


def read_cluster_job(text: str) -> JobDeployment:
    """Parse `JobDeployment.to_text`. Raises ConfigError, because people can type anything into a dispatch."""
    try:
        return JobDeployment.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "it"
        raise ConfigError(f"plan: {text[:80]!r} is not the plan of a job: {where}: {first['msg']}") from None


def open_deployment(api: "GitHub", job: JobDeployment, *, commit: str, run_url: str) -> JobDeployment:
    """Record the job as a deployment of `commit` that a workflow run watches, and return it with its id."""
    body = {
        "ref": commit,
        "task": TASK,
        "environment": ENVIRONMENT,
        "auto_merge": False,
        "required_contexts": [],  # a job is sent although checks of the commit still run
        "description": f"{job.kind} {job.job} on {job.cluster}"[:140],
        "payload": job.model_dump(mode="json"),
    }
    found = job.model_copy(update={"deployment": int(api.post("/deployments", body)["id"])})
    set_status(api, found.deployment, "pending", "sent; this run watches it", run_url=run_url)
    return found


def set_status(api: "GitHub", deployment: int, state: str, text: str, *, run_url: str) -> None:
    """Add a status to a deployment, with a link to a workflow run."""
    body = {"state": state, "description": text[:140], "log_url": run_url, "auto_inactive": False}
    api.post(f"/deployments/{deployment}/statuses", body, again=True)


def is_given_up(api: "GitHub", deployment: int) -> bool:
    """Return whether `MOST_RUNS` runs watched the job and none saw its end; each sets a status `pending`."""
    statuses = api.get(f"/deployments/{deployment}/statuses", per_page=NEWEST)
    return len([each for each in statuses if each["state"] == "pending"]) >= MOST_RUNS


def open_jobs(api: "GitHub", *, now: float) -> Iterator[JobDeployment]:
    """Yield the recorded jobs whose end no workflow run has reported or is about to report."""
    for deployment in api.get("/deployments", task=TASK, environment=ENVIRONMENT, per_page=NEWEST):
        newest = api.get(f"/deployments/{deployment['id']}/statuses", per_page=1)
        status = newest[0] if newest else {"state": "pending", "created_at": deployment["created_at"]}
        if status["state"] in FINAL:
            continue
        age = now - calendar.timegm(time.strptime(str(status["created_at"]), "%Y-%m-%dT%H:%M:%SZ"))
        if status["state"] == "in_progress" or age > LOST_SECONDS:
            payload = deployment["payload"]  # GitHub returns an object, or its JSON text
            text = payload if isinstance(payload, str) else json.dumps(payload)
            yield read_cluster_job(text).model_copy(update={"deployment": int(deployment["id"])})


@dataclass(frozen=True)
class RunEnd:
    """The facts about a run of `deploy_eks.yml` that its report is made from."""

    event: str
    """succeeded, stopped or failed; `running` where the job was sent and its end is not known."""
    is_cancelled: bool = False


def run_end(needs: Json, *, was_sent: bool) -> RunEnd:
    """Return how a run ended, from GitHub's context `needs`: the results and outputs of its jobs."""
    results = {name: str(job.get("result")) for name, job in needs.items()}
    watched = (needs.get("watch") or {}).get("outputs") or {}
    is_cancelled = "cancelled" in results.values()
    if watched.get("ended") == "true":
        if results.get("prove") == "success":
            return RunEnd("succeeded")
        return RunEnd("stopped" if watched.get("exit_code") == "75" else "failed", is_cancelled)
    return RunEnd("running" if was_sent else "failed", is_cancelled)
