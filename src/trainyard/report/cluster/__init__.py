"""Text about a cluster: tables for a terminal, Markdown for the job summary.

In: the plain data of `cluster.record`. Out: text. Nothing is judged here.
"""
