"""What is said of a cluster: tables for a terminal, Markdown for the job summary.

Enters: the plain data of `cluster.record`. Leaves: text. Nothing is judged here.
"""
