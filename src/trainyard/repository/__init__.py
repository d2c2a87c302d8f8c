"""This repository's own set-up on GitHub: what is there, what should be, and the steps from one to the other.

Facts and a way to ask come in; steps with a verdict come out. Nothing here starts a process or opens a
connection.
"""
