"""Checkpoints on the volumes of a cluster: find them, list them, and copy them out, verified on both ends.

In: the API of a cluster, and the place that a command line names. Out: listings and copied files.
"""
