"""The nearest valid key."""

from tests.cases import each_case

from trainyard.config.keys import unknown_key


@each_case(
    ("key", "suggestion"),
    [
        ("training.max_step", "did you mean max_steps?"),
        ("training.lerning_rate", "did you mean learning_rate?"),
        ("modle", "did you mean model?"),
        ("model.architecture.hiden_size", "did you mean hidden_size?"),
        ("max_steps", "did you mean training.max_steps?"),
        ("training.save_steps", "did you mean checkpointing.save_steps?"),
        ("training.sequence_lenght", "did you mean data.sequence_length?"),
        ("checkpointing.zzz", "valid here: save_steps, mode, keep_last, keep_every, shared"),
        ("trainning.sed", "did you mean training.seed?"),
        ("training.<<", "merge keys are not read, use extends"),
    ],
)
def test_an_unknown_key_is_answered_with_the_nearest(key: str, suggestion: str) -> None:
    assert unknown_key(tuple(key.split("."))) == f"unknown key; {suggestion}"


def test_a_dotted_key_in_a_file_is_answered_with_how_to_write_it() -> None:
    assert "dotted keys are for --set" in unknown_key(("training.max_steps",))
    assert "dotted keys are for --set" in unknown_key(("model", "architecture.num_layers"))


def test_a_suggestion_for_the_command_line_is_the_whole_key() -> None:
    assert unknown_key(("training", "max_step"), dotted=True).endswith("did you mean training.max_steps?")


def test_a_huge_key_is_not_compared() -> None:
    assert unknown_key(("training", "k" * 10_000_000)).startswith("unknown key; valid here: batch_size, ")
