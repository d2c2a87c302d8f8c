"""Choose the variables of NCCL, libfabric and torch that a job gets, and check those that it already sets.

In: an instance type and known versions of the software; texts of manifests, Dockerfiles and env files. Out:
variables; findings with a reason and a fix.
"""
