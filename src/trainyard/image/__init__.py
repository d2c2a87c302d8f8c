"""The training image: its content, its version conflicts, and how it is built, checked and named.

In: the text of a Dockerfile and a lock, the files of a build context, and the answers of a builder, a
registry and a probe in a container. Out: plans, verdicts and records as plain values. It starts no builder
itself.
"""
