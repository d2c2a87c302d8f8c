"""What the pods of a job run, one module per program: its command, its files, what it needs.

Others (Megatron-LM, verl) are added as a module each. In: a configuration and where things lie in a pod. Out:
a `Program`.
"""
