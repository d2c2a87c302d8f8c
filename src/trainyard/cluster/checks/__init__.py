"""The checks of a cluster, one module per check, in the order in which people read them.

In: `Facts`. Out: outcomes. To add one: a module with a CHECK, a line in CHECKS, a test.
"""

from trainyard.cluster.check_definition import Check
from trainyard.cluster.checks import (
    device_plugin,
    efa,
    gang,
    gpu,
    image,
    job_api,
    namespace,
    node_health,
    operator,
    own_permissions,
    placement,
    pod_security,
    queue,
    quota,
    storage,
    webhook,
)

CHECKS: tuple[Check, ...] = tuple(
    module.CHECK
    for module in (
        *(own_permissions, namespace, gpu, device_plugin, node_health, efa, placement, gang),
        *(job_api, operator, webhook, queue, quota, pod_security, storage, image),
    )
)
