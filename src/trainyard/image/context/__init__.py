"""What goes into an image: the Dockerfile as data, the files of the context, names of images.

In: texts and listed files. Out: instructions and stages, the chosen files with their digest, or a refusal of
what is too large, secret or misnamed.
"""
