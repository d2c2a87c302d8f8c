"""The training image: what goes into it, what would break in it, how it is built, checked and named.

In: the text of a Dockerfile and a lock, the files of a build context, what a builder, a probe in a container
and a registry said. Out: plans, verdicts and records as plain values. It starts no builder itself.
"""
