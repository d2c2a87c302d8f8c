"""An image's build: the request as a value, the build in AWS followed to its verdict, several side by side.

In: a folder and a Dockerfile, and who builds. Out: the digest that build and registry agree on.
"""
