"""Verify that the store holds what the trainer wrote.

In: a manifest, the store, and the run directory if there is one. Out: every object that differs, by name.
Nothing is changed.
"""
