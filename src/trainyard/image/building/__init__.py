"""Build images: the request as a value, and builds in AWS, followed to their verdicts, several at a time.

In: a folder and a Dockerfile, and the builder. Out: the digest that build and registry agree on.
"""
