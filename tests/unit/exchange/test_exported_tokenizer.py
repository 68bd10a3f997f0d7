"""The exported tokenizer against ours: the same ids and the same text, for every text."""

import random
from pathlib import Path

import pytest
import sentencepiece
import tokenizers
from support import make_pairs
from tokenizer_kinds import KINDS

from comera_dist.data.open_tokenizer import open_tokenizer
from comera_dist.data.pairs import PairCorpus
from comera_dist.data.shards import Corpus
from comera_dist.data.special_tokens import SPECIALS
from comera_dist.errors import DataError
from comera_dist.exchange.fast_tokenizer import fast_tokenizer
from comera_dist.exchange.tokenizer_files import write_tokenizer
from data_prep import tokenize_corpus
from data_prep.text.tokenizer import train_model

transformers = pytest.importorskip("transformers", reason="transformers reads what is exported")

STDLIB = [Path(module.__file__) for module in (random, __import__("argparse"), __import__("typing"))]
# Spaces of many kinds, the character that sentencepiece writes for a space, bytes, digits, marks and emoji.
ALPHABET = " \n\t  \u2581aaabe\u00e9\u00a0\U0001f600\x00\r<>/s01 =_\u2028\ufffd\u0301\ud55c[MASK]"
LOOK_SPECIAL = ["</s>", "a <s> b", "<unk>", "<0x0A>", "[CLS] x [SEP]", "[MASK]", "[PAD]", "", " ", "\n\n", "\u2581"]


@pytest.fixture(scope="module")
def code_model(tmp_path_factory):
    """A tokenizer of Python's own library, as the quickstart has one, with 900 entries."""
    path = tmp_path_factory.mktemp("code") / "tokenizer.model"
    path.write_bytes(train_model((file.read_text() for file in STDLIB), 900))
    return path


def texts():
    draw = random.Random(0)
    for _ in range(1500):
        yield "".join(draw.choice(ALPHABET) for _ in range(draw.randrange(40)))
    for _ in range(500):  # the same letters again and again: several pairs of neighbours make the same piece
        parts = [draw.choice(["a", "e", "=", "-", "_", " ", "0", "ee", " a", "self", "#"]) for _ in range(2)]
        yield "".join(draw.choice(parts) for _ in range(draw.randrange(60)))
    yield from LOOK_SPECIAL
    for file in STDLIB:
        yield from (content := file.read_text()).splitlines(keepends=True)
        yield content


def test_ids_and_texts_are_ours(code_model):
    ours, fast = open_tokenizer(code_model), fast_tokenizer(code_model)
    for text in texts():
        ids = ours.encode(text)
        assert fast.encode(text).ids == ids, text
        assert fast.decode(ids) == text


def test_any_sequence_of_pieces_is_cut_as_ours(code_model):
    ours, fast, draw = open_tokenizer(code_model), fast_tokenizer(code_model), random.Random(1)
    pieces = sorted(fast.get_vocab())
    for _ in range(2000):
        text = "".join(draw.choice(pieces) for _ in range(draw.randrange(12)))
        assert fast.encode(text).ids == ours.encode(text), text


def test_a_saved_tokenizer_of_text_is_read_by_transformers(text_corpus, tmp_path):
    corpus = Corpus(text_corpus)
    ours = open_tokenizer(corpus.tokenizer_path)
    write_tokenizer(ours, corpus, 16, tmp_path)
    found = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in [*LOOK_SPECIAL, "def f(a):\n\treturn '\u00e9'  "]:
        ids = ours.encode(text)
        # A prompt is the beginning of a document, which follows the end of another one.
        assert found(text).input_ids == [ours.eos_id, *ids]
        assert found(text, add_special_tokens=False).input_ids == ids
        assert found.decode(ids) == found.decode([ours.eos_id, *ids], skip_special_tokens=True) == text
    assert (found.bos_token_id, found.eos_token_id) == (ours.eos_id, ours.eos_id)
    assert found.pad_token_id == found.unk_token_id == ours.unk_id
    assert found.model_max_length == 16
    assert found(["a", "a b c"], padding=True).attention_mask[0][-1] == 0


def test_a_saved_tokenizer_of_pairs_makes_our_rows(pair_corpus, tmp_path):
    corpus = PairCorpus(pair_corpus)
    ours = open_tokenizer(corpus.tokenizer_path)
    write_tokenizer(ours, corpus, 64, tmp_path)
    found = transformers.AutoTokenizer.from_pretrained(tmp_path)
    columns, tokens = corpus.split("valid"), corpus.split("valid")["tokens"]
    start = 0
    for first_end, second_end in zip(columns["first_end"], columns["second_end"], strict=True):
        first, second = tokens[start:first_end].tolist(), tokens[first_end:second_end].tolist()
        pair = [ours.decode([token - SPECIALS for token in ids]) for ids in (first, second)]
        row = found(*pair)
        assert row.input_ids == [1, *first, 2, *second, 2]
        assert row.token_type_ids == [0] * (len(first) + 2) + [1] * (len(second) + 1)
        assert found(pair[0]).input_ids == [1, *first, 2]
        start = second_end
    for text in LOOK_SPECIAL:
        assert found(text).input_ids[1:-1] == [token + SPECIALS for token in ours.encode(text)]
    roles = ("pad_token_id", "cls_token_id", "sep_token_id", "mask_token_id")
    assert [getattr(found, role) for role in roles] == list(range(SPECIALS))
    # Where a mask is written by its name, as pipelines do, text that looks special is to be special.
    reading = transformers.AutoTokenizer.from_pretrained(tmp_path, split_special_tokens=False)
    assert 3 in reading("number [MASK] is").input_ids


def test_a_piece_that_looks_special_is_refused(code_model):
    piece = open_tokenizer(code_model).decode([700])
    with pytest.raises(DataError, match="has a piece that looks like one of"):
        fast_tokenizer(code_model, ("[PAD]", piece))


def test_another_kind_of_model_is_refused(tmp_path):
    lines = iter([f"{word} {word}\n" for word in ("one", "two", "three", "four")] * 20)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=lines, model_prefix=str(tmp_path / "m"), model_type="unigram", vocab_size=16, minloglevel=2
    )
    with pytest.raises(DataError, match=r"is not byte-pair encoding with byte fallback .*; export with --to tensors"):
        fast_tokenizer(tmp_path / "m.model")


@pytest.mark.parametrize("kind", KINDS)
def test_a_tokenizer_of_the_users_own_is_taken_along(kind, tmp_path):
    source, corpus, exported = (tmp_path / name for name in ("a.txt", "corpus", "exported"))
    source.write_text("range of item 17\n<|endoftext|>\ntotal += item")
    own = KINDS[kind]()
    own.enable_truncation(2)
    own.enable_padding(length=9)
    if kind == "byte level":
        own.model.dropout = 0.5
    own.save(str(tmp_path / "own.json"))
    arguments = ["--source", f"files:{source}", "--tokenizer", f"{tmp_path}/own.json", "--valid-fraction", "0"]
    tokenize_corpus.tokenize([*arguments, "--output", str(corpus), "--workers", "1"])
    opened, ours = Corpus(corpus), open_tokenizer(tmp_path / "own.json")
    exported.mkdir()
    write_tokenizer(ours, opened, 64, exported)
    theirs = transformers.AutoTokenizer.from_pretrained(exported)
    for text in ("total item 17", "  </s> [SEP] é\n"):
        assert theirs(text)["input_ids"] == [ours.eos_id, *ours.encode(text)]
        assert theirs.decode(ours.encode(text), skip_special_tokens=True) == ours.decode(ours.encode(text))
    assert theirs.eos_token_id == theirs.bos_token_id == theirs.pad_token_id == ours.eos_id
    of_file = tokenizers.Tokenizer.from_file(str(exported / "tokenizer.json"))
    assert of_file.encode("total item 17", add_special_tokens=False).ids == ours.encode("total item 17")


def test_a_tokenizer_json_without_the_special_tokens_of_pairs_is_refused(tmp_path):
    KINDS["byte level"]().save(str(tmp_path / "tokenizer.json"))
    pairs = PairCorpus(make_pairs(tmp_path / "pairs"))
    with pytest.raises(DataError, match=r"has no token \[PAD\], .*; take one that has it, or export with --to tensors"):
        write_tokenizer(open_tokenizer(tmp_path / "tokenizer.json"), pairs, 64, tmp_path)
