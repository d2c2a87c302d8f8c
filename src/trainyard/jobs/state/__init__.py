"""The state of a job, in the same words for all kinds of jobs, and the cause of its failure.

In: what a cluster shows of a job (`Observed`) and what was seen of it before (`History`). Out: a `JobState`
with the first failing rank, its exit code, its last lines and its class. Pure: it queries no cluster.
"""
