"""Jobs on a Kubernetes cluster: a plan becomes a manifest, and what the cluster says of it becomes one state.

Enters: a plan, or what the cluster shows of a job. Leaves: manifests, and the state of a job in `state/`.
Pure: nothing is asked of a cluster here.
"""
