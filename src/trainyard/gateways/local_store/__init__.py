"""A folder as a store, for a laptop.

store  the operations of a store, on files
files  copying, hashing and flushing files to disk
"""
