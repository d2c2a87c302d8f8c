"""How many numbers a model of a shape learns, by part: the arithmetic of `ArchitectureConfig`.

It builds no model; a test compares it with the one that is built.
"""

from dataclasses import dataclass

from trainyard.config.schema import ArchitectureConfig


@dataclass(frozen=True)
class ParameterCount:
    """The numbers of a Llama-family model; all of them are trained."""

    embedding: int
    """The input table; the output layer too when it is tied."""
    output: int
    """The output layer; 0 when it is tied."""
    attention: int
    """The four projections of one block."""
    feed_forward: int
    """The three of its SwiGLU layer."""
    norms: int
    """All RMSNorm weights of the model."""
    blocks: int

    @property
    def total(self) -> int:
        return self.embedding + self.output + self.norms + self.blocks * self.block

    @property
    def block(self) -> int:
        """The matrices of one block, without its norms."""
        return self.attention + self.feed_forward

    @property
    def head(self) -> int:
        """The matrix that makes logits, tied or not."""
        return self.output or self.embedding

    @property
    def multiplied(self) -> int:
        """Those that every token is multiplied with: looking a row up in the input table is no product."""
        return self.head + self.blocks * self.block


def count_parameters(shape: ArchitectureConfig) -> ParameterCount:
    """The parameters of a model of this shape."""
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
