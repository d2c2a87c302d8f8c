"""Operations a token."""

from trainyard.config.schema import ArchitectureConfig
from trainyard.plan.flops import flops_per_token


def test_a_token_takes_six_operations_a_multiplied_parameter_and_its_attention() -> None:
    shape = ArchitectureConfig(
        vocab_size=4096,
        hidden_size=256,
        intermediate_size=1024,
        num_layers=6,
        num_attention_heads=8,
        num_key_value_heads=8,
    )
    multiplied = 4096 * 256 + 6 * (4 * 256 * 256 + 3 * 256 * 1024)
    assert flops_per_token(shape, 256) == 6 * multiplied + 12 * 6 * 256 * 256 == 48_758_784


def test_the_input_table_costs_nothing_and_a_tied_output_does() -> None:
    untied, tied = ArchitectureConfig(), ArchitectureConfig(tie_word_embeddings=True)
    assert flops_per_token(untied, 64) == flops_per_token(tied, 64)
