"""Release a built image: checks on three levels, tags, the verdict on its scan, and attachments.

In: the answers of a builder, a probe and a registry. Out: verdicts, reports and the steps to take.
"""
