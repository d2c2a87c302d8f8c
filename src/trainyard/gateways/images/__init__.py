"""Builders, registries and the disk: the files of a context, docker or buildah, CodeBuild, ECR.

In: plain values of a plan. Out: the answers of the outside world as plain values. `trainyard.image` judges
them.
"""
