"""The checks of a cluster, one module per check, in the order in which people read them.

In: `Facts`. Out: outcomes. To add one: a module with a CHECK, a line in CHECKS, a test.
"""

from trainyard.cluster.check_definition import Check
from trainyard.cluster.checks import (
    api_server,
    auto_resume,
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
    skew,
    storage,
    webhook,
)

CHECKS: tuple[Check, ...] = (
    api_server.CHECK,
    own_permissions.CHECK,
    namespace.CHECK,
    gpu.CHECK,
    device_plugin.CHECK,
    node_health.CHECK,
    efa.CHECK,
    placement.CHECK,
    gang.CHECK,
    job_api.CHECK,
    operator.CHECK,
    webhook.CHECK,
    auto_resume.CHECK,
    queue.CHECK,
    quota.CHECK,
    pod_security.CHECK,
    storage.CHECK,
    image.CHECK,
    skew.CHECK,
)
