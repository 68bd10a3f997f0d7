"""The tokenizer that made prepared data, from its copy in their folder."""

from comera_dist.data.answers import AnswerCorpus
from comera_dist.data.open_tokenizer import open_tokenizer
from comera_dist.data.pairs import PairCorpus
from comera_dist.data.shards import Corpus
from comera_dist.data.tokenizer import Tokenizer
from comera_dist.data.vocabulary import text_vocabulary
from comera_dist.errors import DataError


def tokenizer_of(data: Corpus | PairCorpus | AnswerCorpus) -> Tokenizer:
    """Raises DataError if the file is missing or another tokenizer."""
    tokenizer = open_tokenizer(data.tokenizer_path, data.eos_id)
    described = text_vocabulary(data.manifest)["tokenizer"], data.vocab_size
    if (tokenizer.fingerprint, tokenizer.vocab_size + data.specials) != described:
        raise DataError(f"{data.tokenizer_path} is not the tokenizer that made {data.path}; copy the corpus again")
    return tokenizer
