"""The kinds of jobs, one module per kind, all with one protocol (`kind_protocol.KindProtocol`).

In: a `JobPlan`. Out: the objects that are applied for it. A new kind is a module here and its line in KINDS.
"""

from collections.abc import Mapping

from trainyard.jobs.kinds import hyperpod_pytorch_job, pytorch_job, ray_cluster, ray_job, train_job
from trainyard.jobs.kinds.kind_protocol import KindProtocol

KINDS: Mapping[str, KindProtocol] = {
    kind.NAME: kind for kind in (pytorch_job, train_job, ray_job, ray_cluster, hyperpod_pytorch_job)
}
