"""Release a built image: checks on three levels, its source and tags, the order of a push, verdicts on scans.

In: the facts about an image, a probe's output, the answers of a registry. Out: answers, tags and verdicts.
"""
