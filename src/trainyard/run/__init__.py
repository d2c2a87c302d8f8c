"""A run on disk: its directory, identity, provenance, metrics, events and checkpoint manifests."""
