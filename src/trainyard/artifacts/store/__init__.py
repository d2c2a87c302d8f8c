"""What a store of objects is, as far as everything else needs to know.

In: a store that a gateway opened. Out: the protocol it satisfies, the names of its objects, checksums.
Nothing here knows S3, a file system, or what is in a run.
"""
