"""The labels and annotations of the objects and pods of a job."""

MANAGED_BY = {"app.kubernetes.io/managed-by": "trainyard"}
JOB_LABEL = "trainyard.dev/job"
KIND_LABEL = "trainyard.dev/kind"
EFA_LABEL = "trainyard.dev/efa"
"""Only pods that EFA joins have it: the label by which they require each other's zone."""

PLAN = "trainyard.dev/plan"
"""JSON of the record of the `JobSpec`, without secrets and without the text of files."""
NETWORK = "trainyard.dev/network"
CLUSTER_DIGEST = "trainyard.dev/cluster-sha256"
"""The digest of a RayCluster's specification. Equal digests mean equal clusters."""
RETRIES = "trainyard.dev/retries"
"""How many times we submitted the job again."""
AUTO_RETRY = "trainyard.dev/auto-retry"
"""How many times the job may be submitted again after failures that a retry can recover from."""
CANCELLED = "trainyard.dev/cancelled"
"""The time at which somebody cancelled the job."""
FOLLOWED_BY = "trainyard.dev/followed-by"
"""The name of the job that replaced this one, once it exists."""
RETRY_CLAIM = "trainyard.dev/retry-claim"
"""JSON of a retry that was decided; any watcher may carry it out."""
RETRY_RECORD = "trainyard.dev/retry-record"
"""JSON of the attempts before this job, and of the retries that they used."""
FIRST_NAME = "trainyard.dev/first-name"
"""The name of the job that was submitted first."""
BEFORE = "trainyard.dev/resubmitted-from"
"""The name of the job that this one follows."""


def make_labels(job: str, kind: str) -> dict[str, str]:
    """Return the labels of every object and pod of the job."""
    return {**MANAGED_BY, "app.kubernetes.io/name": "trainyard-job", JOB_LABEL: job, KIND_LABEL: kind}
