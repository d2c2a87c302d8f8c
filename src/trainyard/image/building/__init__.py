"""Build images: the request as a value, and builds in AWS, followed until they have ended.

In: a folder and a Dockerfile, and the builder. Out: the digest that build and registry agree on.
"""
