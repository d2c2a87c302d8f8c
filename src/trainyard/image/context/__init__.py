"""The input of an image: the Dockerfile as data, the files of the context, the names of images.

In: texts and listed files. Out: instructions and stages, the chosen files with their digest, or a refusal of
files that are too large or secret, and of invalid names.
"""
