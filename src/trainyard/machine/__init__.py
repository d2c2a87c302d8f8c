"""Check whether this machine, its packages and everything it needs are ready for a run.

In: facts that the gateways collected (`gateways.local_machine`, `gateways.nvidia`), the lock file, the
configuration. Out: findings with a fix for each, and their text. Pure: it reads no disk, clock or environment
variable.
"""
