"""Write the tokenizer files beside exported weights: copies of the run's own, or a byte tokenizer.

`vocabulary` defines what a token means in training.
"""

import json
import shutil
from pathlib import Path

from trainyard.config.schema import ModelConfig
from trainyard.training.weights.hub_model import TOKENIZER_COMPANIONS
from trainyard.training.weights.pretrained import TOKENIZER_NAME, tokenizer_file

_CONFIG_NAME = "tokenizer_config.json"
_PLAIN = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}


def write_tokenizer(folder: Path, model: ModelConfig) -> None:
    """Write the files that `transformers.AutoTokenizer` loads into `folder`."""
    if model.tokenizer is None:
        (folder / TOKENIZER_NAME).write_text(byte_tokenizer(), encoding="utf-8")
    else:
        source = tokenizer_file(model.tokenizer)
        shutil.copyfile(source, folder / TOKENIZER_NAME)
        for name in TOKENIZER_COMPANIONS:
            if (companion := source.with_name(name)).is_file():
                shutil.copyfile(companion, folder / name)
    if not (folder / _CONFIG_NAME).exists():
        (folder / _CONFIG_NAME).write_text(json.dumps(_PLAIN, indent=2) + "\n")


def byte_tokenizer() -> str:
    """A tokenizer.json whose tokens are the bytes of UTF-8; the id of each token is its byte.

    Byte 0, which separates documents, is not a special token: the tokenizer would then recognise the
    character that represents it in ordinary text.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {sign: byte for byte, sign in enumerate(_signs())}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return str(tokenizer.to_str(pretty=True)) + "\n"


def _signs() -> list[str]:
    """The character that byte-level tokenizers (GPT-2) use for each byte: itself if it is printable."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte if byte in printable else 256 + others.index(byte)) for byte in range(256)]
