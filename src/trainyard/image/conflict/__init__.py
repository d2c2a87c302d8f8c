"""What would break in an image before it is built: which versions go together, and what --fix changes.

In: a Dockerfile, a lock, the machine it is for. Out: findings with their remedies, edits, a base image.
"""
