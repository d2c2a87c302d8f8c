"""Files on the volumes of a cluster: commands in pods, the program that reads there, a pod for it, copies.

In: a claim, a pod or a job. Out: the list of its files, and copies that are verified on both ends.
"""
