"""Validations that are not finite, and random numbers of a step."""

import pytest
import torch

from comera_dist.errors import TrainingError
from comera_dist.runtime.step import check_validation, seed_step


def test_a_validation_that_is_not_finite_ends_the_run():
    with pytest.raises(TrainingError, match="the validation loss at step 7 is nan"):
        check_validation(float("nan"), 7)
    check_validation(1.0, 7)


def test_random_numbers_are_a_function_of_seed_step_and_process():
    def draw(*place):
        seed_step(*place)
        return torch.rand(3).tolist()

    assert draw(1, 5, 0) == draw(1, 5, 0)
    assert len({tuple(draw(*place)) for place in [(1, 5, 0), (2, 5, 0), (1, 6, 0), (1, 5, 1)]}) == 4
