"""The weights that a fresh run starts from, in every format that is read.

In: `model.path`: safetensors, GGUF, a Hub model, or one of our checkpoints. Out: tensors that fit the model.
"""
