"""A folder as a store, for a laptop.

store  the operations of a store, in terms of files
files  copying, hashing and making durable
"""

from trainyard.gateways.local_store.store import LocalObject, LocalStore, LocalUpload

__all__ = ["LocalObject", "LocalStore", "LocalUpload"]
