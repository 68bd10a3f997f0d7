"""The tokenizer of the data that a model was trained on."""

from comera_dist.data.answers import AnswerCorpus
from comera_dist.data.data_tokenizer import tokenizer_of
from comera_dist.data.pairs import PairCorpus
from comera_dist.data.shards import Corpus
from comera_dist.data.tasks import open_task
from comera_dist.data.tokenizer import Tokenizer
from comera_dist.errors import DataError
from comera_dist.run.trained import Trained


def own_tokenizer(trained: Trained, data: Corpus | PairCorpus | AnswerCorpus) -> Tokenizer:
    """The tokenizer in the folder of `data`, the data of the run. DataError if they or the tokenizer were replaced."""
    found, known = open_task(trained.config).fingerprint, trained.checkpoint.run["cursor"]["fingerprint"]
    if found != known:
        raise DataError(
            f"{data.path} is corpus {found[:12]} and the model was trained on {known[:12]}, whose tokenizer it needs; "
            f"put that corpus back in its place"
        )
    return tokenizer_of(data)
