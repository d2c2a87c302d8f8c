"""A folder as a store, for a laptop: the operations of a store, on files that are flushed to disk."""
