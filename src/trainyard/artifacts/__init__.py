"""Proof that what is in the store is what the trainer wrote: hashing, manifest, sync, verification."""
