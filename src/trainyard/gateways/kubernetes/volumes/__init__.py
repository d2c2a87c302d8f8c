"""Files on a cluster's volumes: commands in pods, the program that reads files there, a helper pod, copies.

In: a claim, a pod or a job. Out: the list of its files, and copies that are verified on both ends.
"""
