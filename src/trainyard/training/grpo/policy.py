"""Build the model that GRPO trains: transformers' Llama of our shape, and a tokenizer with our ids.

Its parameters have the same names as those of `training.model.model`, so that checkpoints, exports and
starting weights work for both. This module does not train.
"""

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from trainyard.config.schema import ModelConfig
from trainyard.errors import ConfigError
from trainyard.training.data.vocabulary import load_vocabulary
from trainyard.training.export.exported_tokenizer import byte_tokenizer
from trainyard.training.model.model import build_model
from trainyard.training.weights.hugging_face_config import hugging_face_config
from trainyard.training.weights.pretrained import tokenizer_file
from trainyard.training.weights.starting_weights import load_weights
from trainyard.training.weights.weight_source import WeightSource

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast


def build_policy(config: ModelConfig, *, seed: int, weights: WeightSource | None) -> "LlamaForCausalLM":
    """Build the policy on the CPU. Without `weights` it gets the random weights of pretraining."""
    from transformers import LlamaConfig, LlamaForCausalLM

    end = end_of_answer(config)
    tokens = {"bos_token_id": None, "eos_token_id": end, "pad_token_id": end}
    policy = LlamaForCausalLM(LlamaConfig(**hugging_face_config(config.architecture), **tokens))
    load_policy_weights(policy, config, seed=seed, weights=weights)
    return policy


def load_policy_weights(
    policy: nn.Module, config: ModelConfig, *, seed: int, weights: WeightSource | None
) -> None:
    """Load the starting weights into the policy."""
    if weights is None:
        policy.load_state_dict(build_model(config.architecture, seed=seed).state_dict())
    else:
        load_weights(policy, weights)


def end_of_answer(config: ModelConfig) -> int:
    """The token that ends an answer. Raises ConfigError when the tokenizer has none."""
    end = load_vocabulary(config).eos
    if end is None:
        raise ConfigError(
            f"model.tokenizer: {config.tokenizer} has no end-of-document token, so no answer would end. "
            "Name one as eos_token in the tokenizer_config.json beside it, or set model.tokenizer to null."
        )
    return end


def build_tokenizer(config: ModelConfig) -> "PreTrainedTokenizerFast":
    """Build the run's vocabulary as a transformers tokenizer, without downloading anything."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    if config.tokenizer is None:
        tokenizer = Tokenizer.from_str(byte_tokenizer())
    else:
        tokenizer = Tokenizer.from_file(str(tokenizer_file(config.tokenizer)))
    sign = tokenizer.id_to_token(end_of_answer(config))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=sign, pad_token=sign)


@torch.no_grad()
def answer(policy: Any, tokenizer: Any, question: str, *, tokens: int) -> str:
    """The policy's answer with greedy decoding. No random generator is used."""
    ids = tokenizer(question, return_tensors="pt")["input_ids"].to(policy.device)
    given = ids.shape[1]
    policy.eval()
    for _ in range(tokens):
        likeliest = policy(input_ids=ids).logits[:, -1:].argmax(-1)
        if int(likeliest) == tokenizer.eos_token_id:
            break
        ids = torch.cat([ids, likeliest], dim=1)
    policy.train()
    return str(tokenizer.decode(ids[0, given:], skip_special_tokens=True))
