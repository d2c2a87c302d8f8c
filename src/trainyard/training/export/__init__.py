"""A trained model for other programs: safetensors with `config.json` and tokenizer, or one GGUF file.

In: a verified checkpoint of a run. Out: a folder that transformers or llama.cpp loads.
"""
