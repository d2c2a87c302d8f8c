"""Fine-tune a language model on conversations: TRL's SFTTrainer with a LoRA adapter of peft.

Any model of transformers for causal language modeling can be trained: --model Qwen/Qwen3-0.6B, or a folder.
Without --model, it is a tiny model with random weights, which takes less than a minute on a CPU.
"""

import argparse

import torch
from datasets import Dataset, load_dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers.decoders import ByteLevel
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    set_seed,
)
from trl import SFTConfig, SFTTrainer

try:  # needs Trainyard, or a copy of both files (README.md)
    from trainyard.programs.integrations.transformers_callback import TrainyardCallback
except ImportError:  # it trains without Trainyard, too
    TrainyardCallback = None

CHAT_TEMPLATE = """{% for message in messages %}<|im_start|>{{ message.role }}
{% if message.role == 'assistant' %}{% generation %}{{ message.content }}<|im_end|>{% endgeneration %}
{% else %}{{ message.content }}<|im_end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""ChatML, for a tokenizer that has no template of its own."""


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="a model of the Hugging Face Hub, or a folder")
    parser.add_argument("--data", default="data/conversations.jsonl", help="JSON lines with `messages`")
    parser.add_argument("--output_dir", default="out")
    parser.add_argument("--max_steps", type=int, default=60)
    parser.add_argument("--save_steps", type=int, default=20)
    parser.add_argument("--learning_rate", type=float, default=5e-3, help="for a pretrained model: 1e-4")
    parser.add_argument("--per_device_train_batch_size", type=int, default=8)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=1)
    parser.add_argument("--max_length", type=int, default=512)
    parser.add_argument("--lora_r", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume_from_checkpoint")
    return parser.parse_args()


def tiny_model() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Return a model with random weights and a tokenizer of bytes."""
    special = ["<|pad|>", "<|im_start|>", "<|im_end|>"]
    names = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    bytes_of = Tokenizer(models.BPE(vocab={name: index for index, name in enumerate(names)}, merges=[]))
    bytes_of.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_of.decoder = ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bytes_of,
        pad_token=special[0],
        eos_token=special[2],
        additional_special_tokens=special,
    )
    config = LlamaConfig(
        vocab_size=len(names),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=512,
        pad_token_id=0,
        eos_token_id=2,
        bos_token_id=None,
    )
    return LlamaForCausalLM(config), tokenizer


def main() -> None:
    options = parse_args()
    set_seed(options.seed)
    if options.model:
        model = AutoModelForCausalLM.from_pretrained(options.model, dtype="auto")
        tokenizer = AutoTokenizer.from_pretrained(options.model)
    else:
        model, tokenizer = tiny_model()
    if tokenizer.chat_template is None:
        tokenizer.chat_template = CHAT_TEMPLATE
    dataset: Dataset = load_dataset("json", data_files=options.data, split="train")
    # A model with random weights has to learn its embeddings, too.
    also_trained = None if options.model else ["embed_tokens", "lm_head"]
    callback = TrainyardCallback() if TrainyardCallback else None
    trainer = SFTTrainer(
        model,
        SFTConfig(
            output_dir=options.output_dir,
            max_steps=options.max_steps,
            learning_rate=options.learning_rate,
            per_device_train_batch_size=options.per_device_train_batch_size,
            gradient_accumulation_steps=options.gradient_accumulation_steps,
            max_length=options.max_length,
            bf16=torch.cuda.is_available(),
            use_cpu=not torch.cuda.is_available(),
            logging_steps=1,
            logging_nan_inf_filter=False,  # else a loss that is NaN is logged as 0
            save_steps=options.save_steps,
            save_total_limit=2,
            report_to="none",
            seed=options.seed,
        ),
        train_dataset=dataset,
        processing_class=tokenizer,
        peft_config=LoraConfig(r=options.lora_r, target_modules="all-linear", modules_to_save=also_trained),
        callbacks=[callback] if callback else [],
    )
    trainer.train(resume_from_checkpoint=options.resume_from_checkpoint)
    if callback:
        callback.exit_if_stopped()
    trainer.save_model(f"{options.output_dir}/final")


if __name__ == "__main__":
    main()
