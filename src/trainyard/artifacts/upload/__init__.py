"""Upload from the run directory to the store: once, or while the trainer still writes.

In: a run directory and a store. Out: objects, and the manifest that lists them, put last.
Files are hashed while they are read; nothing that exists is overwritten.
"""
