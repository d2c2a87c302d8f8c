"""This repository's own set-up on GitHub: the present state, the wanted state, and the steps between them.

Facts and a function that asks GitHub come in; steps with a verdict come out. Nothing here starts a process or
opens a connection.
"""
