"""Create, read, change and remove the AWS resources for building images, a module per group of resources.

In: the properties of a resource, as `infrastructure.resources` lists them. Out: the account's settings, in
the API's words. Each kind compares and corrects its own settings; nothing that holds data is removed.
"""
