"""Read YAML text as plain values: find a file, parse it, and merge it over the files that it extends.

In: the path of a configuration file. Out: plain values, each with its file and line. What the values mean,
and whether they are allowed, is decided outside this room.
"""
