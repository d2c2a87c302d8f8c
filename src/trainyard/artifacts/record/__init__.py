"""The record of a stored run: manifest, chain of manifests, run number, signature, provenance statement.

In: a run directory, or the manifests that a store holds. Out: the objects of the run, by digest.
It moves no file; `upload/` and `restore/` do.
"""
