"""The trainer: model, data, loop, checkpoints. The only importer of torch; it knows no store, no network."""
