"""YAML text as plain values: finding a file, parsing it, laying it over the files that it extends.

In: the path of a configuration file. Out: plain values, each with the file and line it came from.
What the values mean, and whether they are allowed, is judged outside this room.
"""
