"""Build images: the request as a value, and builds in AWS, polled until they have ended, several at a time.

In: a folder and a Dockerfile, and the builder. Out: the digest that build and registry agree on.
"""
