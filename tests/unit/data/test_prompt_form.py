"""The form of a prompt with its answer."""

import pytest

from comera_dist.data.prompt_form import PLAIN, PromptForm
from comera_dist.errors import DataError


def test_a_prompt_stands_in_its_form():
    form = PromptForm("Q: {prompt}\nA:{response}")
    assert form.asked("why {prompt}?") == "Q: why {prompt}?\nA:"
    assert form.answered("1+1", " 2") == "Q: 1+1\nA: 2\n"
    assert PromptForm(PLAIN).asked("1+1") == "1+1\n"


@pytest.mark.parametrize(
    "template",
    ["", "{prompt}", "{response}", "{response}{prompt}", "{prompt}{response}.", "{prompt}{prompt}{response}"],
)
def test_a_form_has_one_prompt_and_then_ends_with_the_answer(template):
    with pytest.raises(DataError, match=r"does not hold \{prompt\} once"):
        PromptForm(template)
