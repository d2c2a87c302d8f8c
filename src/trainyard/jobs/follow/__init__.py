"""Follow jobs in a cluster: find them, watch them, read their logs, change them, send them again.

In: the API of a cluster (`gateways.kubernetes.api`), clocks and a way to wait. Out: states, logs, changed
objects. What a state is, `jobs/state` decides; whether a job is sent again, `watch`.
"""
