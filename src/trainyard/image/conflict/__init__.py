"""Find version conflicts that would break an image, before it is built, and fix those that --fix can fix.

In: a Dockerfile, a lock, the machine that the image is for. Out: findings with fixes, edits, a base image.
"""
