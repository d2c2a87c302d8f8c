"""Labels and annotations that identify the objects and pods of a job, and what they mean."""

from collections.abc import Mapping

MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGER = "trainyard"
"""Also the name of the field manager of everything that is applied."""
APPLICATION = "app.kubernetes.io/name"
JOB = "trainyard.dev/job"
KIND = "trainyard.dev/kind"

PLAN = "trainyard.dev/plan"
"""JSON of the `JobPlan`, without secrets: a job can be submitted again from it."""
RETRIES = "trainyard.dev/retries"
"""How many times the job was submitted again."""
AUTO_RETRY = "trainyard.dev/auto-retry"
"""How many times it may be submitted again."""
NETWORK = "trainyard.dev/network"
CONFIG_DIGEST = "trainyard.dev/config-sha256"
CLUSTER_DIGEST = "trainyard.dev/cluster-sha256"
"""The digest of a RayCluster's specification. Equal digests mean equal clusters."""
_PROVENANCE = "trainyard.dev/"


def selecting_labels(job: str) -> Mapping[str, str]:
    """The labels that select everything that belongs to the job."""
    return {MANAGED_BY: MANAGER, JOB: job}


def make_labels(job: str, kind: str) -> dict[str, str]:
    """The labels of every object and pod of the job."""
    return {MANAGED_BY: MANAGER, APPLICATION: "trainyard-job", JOB: job, KIND: kind}


def provenance_annotations(provenance: Mapping[str, str]) -> dict[str, str]:
    """Annotations with the origin of a job: commit, lock and so on; unknown facts are left out."""
    return {_PROVENANCE + name: value for name, value in provenance.items() if value}
