"""Where a job stands, the same words for all kinds of jobs, and why it failed.

Enters: what a cluster shows of a job (`Observed`) and what was seen of it before (`History`). Leaves: a
`JobState` with the first failing rank, its exit code, its last lines and its class. Pure: nothing is asked
of a cluster here.
"""
