"""The model shapes for which `memory_fit.py` compares planned and measured memory: one line each."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Shape:
    """A model and its batch; the feed-forward is 2.75 times as wide as the residual stream."""

    width: int
    blocks: int
    batch: int
    sequence: int
    vocabulary: int = 256
    bfloat16: bool = False
    accumulation: int = 1
    tied: bool = False
    compiled: bool = False
    strategy: str = "single"
    recomputation: str = "none"
    processes: int = 1
    compression: str = "none"
    saving: str = "sync"
    packing: str = "concatenate"
    """`separate` takes the vocabulary of bytes, whose 0 ends a document."""

    def architecture(self) -> dict[str, Any]:
        heads = self.width // 64
        return {
            "vocab_size": self.vocabulary,
            "hidden_size": self.width,
            "intermediate_size": self.width * 11 // 4,
            "num_layers": self.blocks,
            "num_attention_heads": heads,
            "num_key_value_heads": heads // 2,
            "max_position_embeddings": self.sequence,
            "tie_word_embeddings": self.tied,
        }


SHAPES = {
    "small-float32": Shape(width=256, blocks=4, batch=4, sequence=256),
    "small-bfloat16": Shape(width=256, blocks=2, batch=2, sequence=128, vocabulary=8192, bfloat16=True),
    "wide-float32": Shape(width=512, blocks=12, batch=4, sequence=512),
    "wide-bfloat16": Shape(width=512, blocks=12, batch=4, sequence=512, bfloat16=True),
    "many-float32": Shape(width=384, blocks=6, batch=16, sequence=256),
    "long-bfloat16": Shape(width=384, blocks=8, batch=2, sequence=1024, bfloat16=True),
    "words-float32": Shape(width=256, blocks=6, batch=4, sequence=256, vocabulary=32_000),
    "words-bfloat16": Shape(width=256, blocks=6, batch=4, sequence=512, vocabulary=32_000, bfloat16=True),
    "tied-float32": Shape(width=512, blocks=8, batch=2, sequence=256, vocabulary=32_000, tied=True),
    "heavy-bfloat16": Shape(512, 8, batch=2, sequence=256, vocabulary=32_000, bfloat16=True, accumulation=2),
    "heavy-float32": Shape(width=768, blocks=8, batch=2, sequence=64, accumulation=2),
    "compiled-float32": Shape(width=256, blocks=6, batch=8, sequence=256, compiled=True),
    "compiled-bfloat16": Shape(
        256, 6, batch=4, sequence=512, vocabulary=32_000, bfloat16=True, compiled=True
    ),
    "table-bfloat16": Shape(768, 2, batch=1, sequence=64, vocabulary=32_000, bfloat16=True),
    "full-float32": Shape(width=384, blocks=8, batch=8, sequence=256, recomputation="full"),
    "full-bfloat16": Shape(384, 8, batch=8, sequence=256, bfloat16=True, recomputation="full"),
    "selective-float32": Shape(384, 8, batch=8, sequence=256, recomputation="selective"),
    "selective-bfloat16": Shape(384, 8, batch=8, sequence=256, bfloat16=True, recomputation="selective"),
    "ddp2-float32": Shape(384, 6, batch=4, sequence=256, strategy="ddp", processes=2),
    "powersgd2-float32": Shape(
        384, 6, batch=1, sequence=64, strategy="ddp", processes=2, compression="powersgd"
    ),
    "fsdp2-float32": Shape(512, 12, batch=2, sequence=256, strategy="fsdp", processes=2),
    "fsdp2-bfloat16": Shape(512, 12, batch=2, sequence=256, bfloat16=True, strategy="fsdp", processes=2),
    "fsdp2-heavy-float32": Shape(
        512, 12, batch=1, sequence=128, strategy="fsdp", processes=2, accumulation=4
    ),
    "fsdp2-heavy-bfloat16": Shape(
        512, 12, batch=1, sequence=128, bfloat16=True, strategy="fsdp", processes=2, accumulation=4
    ),
    "fsdp4-heavy-float32": Shape(512, 12, batch=1, sequence=64, strategy="fsdp", processes=4, accumulation=2),
    "apart-float32": Shape(256, 4, batch=4, sequence=512, packing="separate"),
    "apart-bfloat16": Shape(384, 8, batch=2, sequence=1024, bfloat16=True, packing="separate"),
    "apart-compiled-float32": Shape(256, 4, batch=4, sequence=512, compiled=True, packing="separate"),
    "apart-compiled-bfloat16": Shape(
        256, 4, 2, sequence=1024, bfloat16=True, compiled=True, packing="separate"
    ),
    "apart-full-float32": Shape(256, 8, batch=4, sequence=512, recomputation="full", packing="separate"),
    "apart-selective-bfloat16": Shape(
        256, 8, 4, 512, bfloat16=True, recomputation="selective", packing="separate"
    ),
    "apart-fsdp2-bfloat16": Shape(
        256, 8, 2, 512, bfloat16=True, strategy="fsdp", processes=2, packing="separate"
    ),
    "saved-async-float32": Shape(width=512, blocks=8, batch=1, sequence=128, saving="async"),
    "saved-process-bfloat16": Shape(512, 8, batch=1, sequence=128, bfloat16=True, saving="async"),
    "saved-ddp2-float32": Shape(512, 8, batch=1, sequence=128, strategy="ddp", processes=2, saving="async"),
    "saved-fsdp2-float32": Shape(512, 8, batch=1, sequence=128, strategy="fsdp", processes=2, saving="async"),
    "fsdp2-full-bfloat16": Shape(
        512, 12, 8, 256, 8192, bfloat16=True, strategy="fsdp", recomputation="full", processes=2
    ),
}
