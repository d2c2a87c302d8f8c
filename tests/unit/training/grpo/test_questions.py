"""The questions of a run."""

import itertools

from tests.unit.training.grpo.test_arithmetic import depth_of

from trainyard.config.schema import Config
from trainyard.training.grpo.arithmetic import evaluate
from trainyard.training.grpo.questions import Questions, questions_of


def questions(**changes: int) -> Questions:
    return Questions(**{"seed": 1, "depth": 2, "count": 10, "per_step": 3, **changes})


def test_an_epoch_asks_each_draw_once_and_the_next_in_another_order() -> None:
    generated = questions(count=12)
    steps = [generated.of_step(step) for step in range(2 * generated.steps_per_epoch)]
    first, second = (list(itertools.chain(*half)) for half in (steps[:4], steps[4:]))
    assert sorted(first) == sorted(second)
    assert first != second
    assert {len(step) for step in steps} == {3}


def test_the_fingerprint_covers_the_parameters_of_the_generator() -> None:
    changed = [questions(**change) for change in ({"seed": 2}, {"depth": 3}, {"count": 11})]
    assert len({generated.fingerprint for generated in (questions(), *changed)}) == 4
    assert questions(per_step=4).fingerprint == questions().fingerprint


def test_solved_questions_come_with_their_answers_and_no_draw_of_the_steps() -> None:
    generated = questions(depth=4, count=50)
    solved = generated.solved_questions(0, 20)
    assert solved[5:8] == generated.solved_questions(5, 3)
    assert all(int(answer) == evaluate(question.removesuffix("=")) for question, answer in solved)
    in_steps = {text for step in range(generated.steps_per_epoch) for text in generated.of_step(step)}
    assert in_steps.isdisjoint(question for question, _ in solved)
    assert in_steps.isdisjoint(generated.unused_questions(20))


def test_the_configuration_decides_depth_and_number() -> None:
    config = Config.model_validate(
        {
            "recipe": "grpo",
            "model": {"name": "m"},
            "training": {"max_steps": 1, "batch_size": 8, "gradient_accumulation_steps": 3, "seed": 9},
            "grpo": {"completions_per_question": 4, "questions": 100},
            "kernel_optimization": {"rlvr_depth": 5},
        }
    )
    generated = questions_of(config)
    assert generated == Questions(seed=9, depth=5, count=100, per_step=6)
    assert {depth_of(text) for text in generated.of_step(3)} == {5}
    assert generated.to_json()["questions"] == 100
