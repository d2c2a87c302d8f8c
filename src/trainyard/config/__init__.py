"""The typed configuration: its schema, and how it is loaded, extended, overridden, checked and explained.

In: YAML files and `--set key=value`. Out: a frozen `Config`, or every problem with file, line and key.
`load` is the entry; `yaml/` reads the text, everything else judges the values.
"""
