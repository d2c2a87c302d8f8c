"""The variables of NCCL, libfabric and torch: which a job is given, and what is wrong with those that it has.

In: an instance type and what is known of the software; texts of manifests, Dockerfiles and env files. Out:
variables; findings with a reason and a fix.
"""
