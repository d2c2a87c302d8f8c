"""The interface of a store of objects, and what its objects are called.

In: a store that a gateway opened. Out: the protocol it satisfies, the names of its objects, checksums.
Nothing here knows S3, a file system, or what is in a run.
"""
