"""A trained model for other programs: safetensors with `config.json` and tokenizer.

In: a verified checkpoint of a run. Out: a folder that transformers loads.
"""
