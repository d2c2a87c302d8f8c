"""The AWS resources that building images needs: one list for a script, CloudFormation and Terraform.

In: the name of the project and a few choices. Out: resources as values, a template, a module, and the steps
that make an account agree with the list. Nothing here calls AWS; `gateways.aws_setup` does.
"""
