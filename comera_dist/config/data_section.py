"""The keys of `data`: where the prepared data of a run are, and how rows are cut from them."""

import math
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from comera_dist.config.fields import MOST_RULES, Folder, Number, Positive, PositiveFloat, Section

# Rows of a mixture after which all shares are met exactly; chosen: weights of five decimals fit, and the table of whose
# turn it is stays small.
LONGEST_PERIOD = 100_000
USUAL_CORPUS = Path("corpora/python-stdlib")


class MixedCorpus(Section):
    """A corpus of the list `data.mixture`, which a run reads in place of `data.corpus`."""

    corpus: Folder
    """Folder of prepared data, as a command of data_prep/ writes it."""
    weight: PositiveFloat
    """Share of this corpus in the rows of the run, in proportion to the weights of the others."""

    @property
    def name(self) -> str:
        """The name of the corpus in the figures of a run."""
        return self.corpus.name


def _usual_if_null(corpus: Any) -> Any:
    return USUAL_CORPUS if corpus is None else corpus


class Data(Section):
    """Folders of the prepared data, and how rows are cut from them.

    A decoder reads tokenized text, or prompts with answers, an encoder tokenized pairs, a DLRM click logs.
    """

    corpus: Annotated[Folder, BeforeValidator(_usual_if_null)] = USUAL_CORPUS
    """Folder of prepared data, as a command of data_prep/ writes it; null is the default."""
    mixture: Annotated[tuple[MixedCorpus, ...], Field(max_length=MOST_RULES)] = ()
    """Corpora with one vocabulary and the weight of each, as a list; they are read in place of `data.corpus`."""
    seq_len: Positive = 128
    """Length of a training sequence in tokens; a DLRM does not use it."""
    documents: Literal["joined", "separate"] = "joined"
    """Whether a decoder's tokens attend to everything before them in their sequence, or to their own document alone."""
    masked_fraction: Annotated[float, Number, Field(gt=0.0, le=1.0)] = 0.15
    """Share of a pair's tokens that an encoder with head masked_lm must predict; the default is BERT's."""

    @property
    def folders(self) -> tuple[Path, ...]:
        """The folders that a run reads."""
        return tuple(part.corpus for part in self.mixture) or (self.corpus,)

    @property
    def described(self) -> str:
        """The folders in a sentence."""
        return " + ".join(map(str, self.folders))

    @property
    def shares(self) -> tuple[Fraction, ...]:
        """The share of each corpus of the mixture, exactly as its decimal weight says; their sum is 1."""
        weights = [Fraction(str(part.weight)) for part in self.mixture]
        return tuple(weight / sum(weights) for weight in weights)

    def of_corpus(self, folder: Path) -> "Data":
        """The same keys for a single corpus."""
        return self.model_copy(update={"corpus": folder, "mixture": ()})


def period_of(shares: Sequence[Fraction]) -> int:
    """Rows after which every share of a mixture is met exactly, so that the turns of its corpora begin again."""
    return math.lcm(*(share.denominator for share in shares))


def masked_places(seq_len: int, masked_fraction: float) -> int:
    """Tokens that a masked LM predicts in a row of `seq_len` tokens; the count is the same in every row."""
    return max(1, math.ceil(masked_fraction * seq_len))
