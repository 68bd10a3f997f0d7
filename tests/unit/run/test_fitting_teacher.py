"""Which model can be the teacher of a run."""

import pytest
from support import FACTS, WORKLOADS

from comera_dist.config.reader import read_config
from comera_dist.errors import ConfigError
from comera_dist.models.encoder.plan import EncoderFacts
from comera_dist.models.family import build_model, plan_model
from comera_dist.run.teacher import teach
from comera_dist.run.trained import Trained


def encoder(head, facts, *overrides):
    """Configuration, plan and model of an encoder."""
    config = read_config(None, [*WORKLOADS[head], "train.teacher.run=runs/teacher", *overrides])
    plan = plan_model(config, facts)
    return config, plan, build_model(config.model, plan, None)


def with_teacher(head, facts, *overrides):
    """A model with the sizes of the data learns from one that `facts` and `overrides` describe."""
    config, _, model = encoder(head, EncoderFacts(FACTS.vocab_size, FACTS.classes))
    described, plan, other = encoder(head, facts, *overrides)
    teach(model, Trained(described, plan, None, other), config)


@pytest.mark.parametrize(
    ("head", "facts", "words"),
    [
        ("masked_lm", EncoderFacts(FACTS.vocab_size + 8), "predicts one of 72 and the model one of 64; set the sizes"),
        ("classifier", EncoderFacts(FACTS.vocab_size, 5), "predicts one of 5 and the model one of 3; set the sizes"),
    ],
)
def test_a_teacher_with_more_rows_than_the_data_name_is_refused(head, facts, words):
    with pytest.raises(ConfigError, match=f"train.teacher.run = runs/teacher {words}"):
        with_teacher(head, facts)


def test_a_teacher_of_shorter_sequences_is_refused():
    short = ["model.positions=8", "data.seq_len=8"]
    with pytest.raises(ConfigError, match=r"its own model: data\.seq_len = 16 is longer than model\.positions = 8"):
        with_teacher("masked_lm", EncoderFacts(FACTS.vocab_size), *short)
