"""Hash, store, verify, restore and prune runs, with a manifest that proves what the store holds."""
