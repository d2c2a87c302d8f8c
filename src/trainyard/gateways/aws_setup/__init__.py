"""Makes, reads, changes and removes the AWS resources for building images, a module for each group of them.

In: the properties of a resource, as `infrastructure.resources` lists them. Out: what the account has, in the
words of the API. Each kind compares and mends its own settings; nothing is removed that holds data.
"""
