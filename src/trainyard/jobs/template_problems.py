"""Find the fields of `cluster.pod.template` that the plan of a job sets itself.

A fragment that changed them would contradict what preflight, price and proof are based on. Whether the fields
exist, the configuration has checked; what else a cluster refuses, a dry run shows.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from posixpath import normpath

from trainyard.cluster.pod_fragment import MAIN
from trainyard.config.pod_schema import list_fields
from trainyard.jobs.job_spec import FILES_DIRECTORY, SCRATCH, JobSpec
from trainyard.jobs.pod_template import SHARED_MEMORY

_OWN_CONTAINERS = "pytorch|node|ray-head|ray-worker|ray-job-submitter"
_MAIN = rf"spec\.containers\[{MAIN}\]\."
_ANY = r"spec\.(containers|initContainers)\[[^]]+\]\."
_OWNED = (
    (_MAIN + "(command|args)", "set by program.command, or the words after --"),
    (_MAIN + "image", "set by --image-uri (cluster.image)"),
    (_MAIN + "workingDir", "set by cluster.pod.directory"),
    (_MAIN + r"resources\.\w+\.(cpu|memory)", "set by cluster.pod.cpu and cluster.pod.memory"),
    (_ANY + r"resources\.\w+\.nvidia\.com/.*", "set by --gpu-per-node"),
    (_ANY + r"resources\.\w+\.(vpc\.amazonaws\.com/efa|hugepages-.*)", "set by compute.network"),
    (rf"spec\.containers\[({_OWN_CONTAINERS})\]", f"the container that trains is called {MAIN} here"),
    (r"spec\.volumes\[shared-memory\]", "set by cluster.pod.shared_memory"),
    (r"spec\.volumes\[checkpoints\]", "set by cluster.volume.claim"),
    (r"spec\.volumes\[(scratch|files|hugepages)\]", "a volume of the plan has this name"),
    (r"spec\.terminationGracePeriodSeconds", "set by cluster.pod.grace_seconds"),
    (r"spec\.restartPolicy", "set by cluster.pod.restarts"),
    (
        r"spec\.(hostname|subdomain|setHostnameAsFQDN|resources|nodeName)",
        "set by the operator or the scheduler",
    ),
)
"""Fields of `cluster.pod.template`, and why they are refused there."""


def find_template_problems(
    plan: JobSpec, given: Mapping[str, str], setter_of: Callable[[str, JobSpec], str]
) -> Iterator[str]:
    """Yield the fields of `cluster.pod.template` that other keys set, and whose values the plan needs.

    `given` are the user's variables; `setter_of` returns who sets a variable that the user must not set.
    """
    mounts = {
        **dict.fromkeys((SCRATCH, FILES_DIRECTORY, "/dev/hugepages"), "a mount of the plan is there"),
        SHARED_MEMORY: "set by cluster.pod.shared_memory",
    }
    if plan.mount_path:
        mounts[normpath(plan.mount_path)] = "set by cluster.volume.mount_path"
    for path, inner in list_fields(plan.template):
        main = path.removeprefix(f"spec.containers[{MAIN}].")
        name = main.removeprefix("env[").partition("]")[0]
        if by := next((by for pattern, by in _OWNED if re.fullmatch(pattern, path)), ""):
            reason = by
        elif inner == "VolumeMount" and main != path:
            reason = mounts.get(normpath(main.removeprefix("volumeMounts[").rpartition("]")[0]), "")
        elif inner == "EnvVar" and main != path and name.startswith("TRAINYARD_"):
            reason = "set by the plan of the job, or by --env"
        elif inner == "EnvVar" and main != path:
            reason = setter_of(name, plan) or ("set by --env too" if name in given else "")
        else:
            reason = ""
        if reason:
            yield f"cluster.pod.template.{path}: {reason}; remove it here"
