"""Check whether a Kubernetes or HyperPod cluster can run what a configuration asks for.

In: the answers of its API, read once and passed in. Out: findings with a fix for each, capacity, nodes.
Pure: the calls are made in `gateways/kubernetes/`.
"""
