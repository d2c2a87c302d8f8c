"""Restore from the store: a run, one checkpoint, or the checkpoint that an interrupted run resumes from.

In: a store, a run number and a choice of checkpoint. Out: a run directory whose files were compared with the
manifest.
"""
