"""The typed configuration: its schema, and code to load, extend, override, check and explain it.

In: YAML files and `--set key=value`. Out: a frozen `Config`, or every problem with file, line and key.
`load` is the entry; `yaml_reader` reads the text, everything else judges the values.
"""
