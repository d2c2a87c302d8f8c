"""Builders, registries and the disk: the files of a context, docker or buildah, CodeBuild, ECR.

In: plain values of a plan. Out: what the outside answered, as plain values. What it means is judged in
`trainyard.image`.
"""
