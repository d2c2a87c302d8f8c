"""The rewards of answers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.training.grpo.reward import judge_answer


@pytest.mark.parametrize(
    ("answer", "reward"),
    [
        ("7", 1.0),
        ("07", 1.0),
        ("6", 0.46),
        ("8", 0.46),
        ("0", 0.22),
        ("17", 0.1),
        ("999", 0.1),
        ("", 0.0),
        (" 7", 0.0),
        ("7 ", 0.0),
        ("7\n", 0.0),
        ("-7", 0.0),
        ("7.0", 0.0),
        ("(3+4)", 0.0),
        ("3+4", 0.0),
        ("٧", 0.0),
        ("0007", 0.0),
    ],
)
def test_only_the_right_number_is_worth_more_than_a_half(answer: str, reward: float) -> None:
    verdict = judge_answer("(3+4)=", answer)
    assert verdict.reward == pytest.approx(reward)
    assert verdict.is_right == (reward == 1.0)


@given(st.text(max_size=8))
def test_any_text_is_judged(answer: str) -> None:
    assert 0.0 <= judge_answer("((1+2)*3)=", answer).reward <= 1.0


def test_nearer_is_worth_more() -> None:
    rewards = [judge_answer("(9-0)=", str(value)).reward for value in range(10)]
    assert rewards == sorted(rewards)
    assert len(set(rewards)) == 10
