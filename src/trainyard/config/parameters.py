"""Count the parameters of an `ArchitectureConfig` by part.

It builds no model; a test compares the counts with a built model.
"""

from dataclasses import dataclass

from trainyard.config.schema import ArchitectureConfig

# Bytes of AdamW's state per parameter: two moments in float32.
OPTIMIZER_BYTES = 8


@dataclass(frozen=True)
class ParameterCount:
    """Parameters of a Llama-family model; all are trained."""

    embedding: int
    """Input embedding; also the output layer when it is tied."""
    output: int
    """The output layer; 0 when it is tied."""
    attention: int
    """The four attention projections of one block."""
    feed_forward: int
    """The three SwiGLU projections of one block."""
    norms: int
    """All RMSNorm weights of the model."""
    blocks: int

    @property
    def total(self) -> int:
        return self.embedding + self.output + self.norms + self.blocks * self.block

    @property
    def block(self) -> int:
        """Matrices of one block, without its norms."""
        return self.attention + self.feed_forward

    @property
    def head(self) -> int:
        """Output matrix, tied or not."""
        return self.output or self.embedding

    @property
    def multiplied(self) -> int:
        """Parameters in matrix products per token; the embedding lookup is none."""
        return self.head + self.blocks * self.block


def count_parameters(shape: ArchitectureConfig) -> ParameterCount:
    """Count the parameters of a model of this shape."""
    width, table = shape.hidden_size, shape.vocab_size * shape.hidden_size
    key_value_width = width // shape.num_attention_heads * shape.num_key_value_heads
    return ParameterCount(
        embedding=table,
        output=0 if shape.tie_word_embeddings else table,
        attention=2 * width * (width + key_value_width),
        feed_forward=3 * width * shape.intermediate_size,
        norms=(2 * shape.num_layers + 1) * width,
        blocks=shape.num_layers,
    )
