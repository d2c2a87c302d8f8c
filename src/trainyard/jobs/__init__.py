"""Jobs on a Kubernetes cluster: convert a plan to a manifest, and the cluster's answers to one job state.

In: a plan, or what the cluster shows of a job. Out: manifests, and the state of a job (`state/`). Pure: it
queries no cluster.
"""
