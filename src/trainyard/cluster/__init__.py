"""A Kubernetes or HyperPod cluster: can it run what a configuration asks for.

In: what its API said, read once and handed in. Out: findings with a fix for each, capacity, nodes.
Pure: the calls are made in `gateways/kubernetes/`.
"""
