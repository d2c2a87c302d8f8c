"""Presets: a training program that people know by name, and its command line from our configuration.

In: the configuration, and the run that the program is started for. Out: a command, its variables and its
files. A preset is a module here that defines `PRESET`, and its line in `PRESETS` of `config/registries.py`.
"""
