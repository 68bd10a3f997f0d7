"""The tokenizer keeps every text exactly, is the same each time it is trained, and has tokens for indents."""

import io
import random
from collections import Counter

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from comera_dist.data.open_tokenizer import open_tokenizer
from comera_dist.data.tokenizer import Tokenizer
from comera_dist.errors import DataError
from data_prep.files.skips import Skips
from data_prep.text.sources import SKIPPED, Documents
from data_prep.text.tokenizer import sorted_by_frequency, train_model

AWKWARD = (
    "\u2581 \u2585\ufffd\ufeff\t\r\n\x00\x0b\x1f\x7f\x85\u00a0\u2028\U0001f600\U0001f468\u200d\u0301 <s></s><unk><0x41>"
)


def stdlib_texts(count: int) -> list[str]:
    texts = (document.words for document in Documents(["python-stdlib"]).read(Skips(False, SKIPPED)))
    return [next(texts) for _ in range(count)]


@pytest.fixture(scope="module")
def model() -> bytes:
    return train_model(iter(stdlib_texts(60)), vocab_size=1024)


@pytest.fixture(scope="module")
def tokenizer(model, tmp_path_factory) -> Tokenizer:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.model"
    path.write_bytes(model)
    return open_tokenizer(path)


def test_every_text_survives(tokenizer):
    @given(st.text() | st.text(alphabet=AWKWARD))
    def check(text):
        assert tokenizer.decode(tokenizer.encode(text)) == text

    check()


def test_real_code_survives(tokenizer):
    for text in stdlib_texts(120):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_text_cannot_write_control_tokens(tokenizer):
    assert tokenizer.eos_id not in tokenizer.encode("</s> <s> <unk>")
    assert tokenizer.decode([*tokenizer.encode("a"), tokenizer.eos_id]) == "a"


def test_a_model_with_pieces_of_several_lines_reads_texts_at_once(tmp_path):
    """As Gemma's, which has a piece for two line ends."""
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["alpha beta gamma delta"] * 9),
        model_prefix=str(tmp_path / "foreign"),
        vocab_size=280,
        byte_fallback=True,
        user_defined_symbols=["\n", "\n\n"],
        minloglevel=2,
        hard_vocab_limit=False,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=False,
    )
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "foreign.model"))
    ours = open_tokenizer(tmp_path / "foreign.model")
    for text in ("alpha\n\nbeta", "alpha\nbeta\n"):
        assert ours.encode(text) == theirs.encode(text)


def test_line_by_line_is_the_same_as_at_once(tokenizer):
    text = stdlib_texts(1)[0]
    assert tokenizer.encode(text) == tokenizer._processor.encode(text)


@pytest.mark.parametrize("indent", [*range(1, 17), 20, 24])
def test_an_indent_is_one_token(tokenizer, indent):
    without = tokenizer.encode("\nreturn")
    assert len(tokenizer.encode("\n" + " " * indent + "return")) <= len(without) + 1
    assert len(tokenizer.encode(" " * indent)) == 1


def test_damaged_models_are_refused_keep_every_text_or_say_that_they_do_not(model, tmp_path):
    draw, path, refused = random.Random(0), tmp_path / "damaged.model", 0
    for _ in range(300):
        place = draw.randrange(len(model))
        path.write_bytes(model[:place] + bytes([model[place] ^ 1 << draw.randrange(8)]) + model[place + 1 :])
        try:
            tokenizer = open_tokenizer(path)
        except DataError:
            refused += 1
        else:
            assert not tokenizer.keeps_text or tokenizer.decode(tokenizer.encode("\tx = 1\n")) == "\tx = 1\n"
    assert refused > 20


def test_training_twice_gives_the_same_bytes(model):
    assert train_model(iter(stdlib_texts(60)), vocab_size=1024) == model


def test_ids_are_sorted_by_frequency(tokenizer):
    count = Counter(token for text in stdlib_texts(60) for token in tokenizer.encode(text))
    frequencies = [count[token] for token in range(3, tokenizer.vocab_size)]  # <unk>, <s> and </s> stay first
    assert frequencies == sorted(frequencies, reverse=True)
    assert frequencies[0] > 100 * frequencies[-1]


def test_other_ids_cut_a_text_into_the_same_pieces(model):
    text = stdlib_texts(3)[2]
    sorted_here = sorted_by_frequency(model, [text])
    before, after = (sentencepiece.SentencePieceProcessor(model_proto=bytes_) for bytes_ in (model, sorted_here))
    assert before.encode(text) != after.encode(text)
    assert before.encode(text, out_type=str) == after.encode(text, out_type=str)
    assert (after.unk_id(), after.bos_id(), after.eos_id()) == (0, 1, 2)


def test_fingerprint_is_the_hash_of_the_file(tokenizer):
    from comera_dist.data.contents import file_sha256

    assert tokenizer.fingerprint == file_sha256(tokenizer.path)
    assert tokenizer.vocab_size == 1024


@pytest.mark.parametrize("size", [1, 100, 1_000_000])
def test_an_impossible_vocabulary_is_refused_in_a_sentence(size):
    with pytest.raises(DataError, match=f"no tokenizer with {size} entries.*(too high|smaller|insert_id)"):
        train_model(iter(stdlib_texts(3)), vocab_size=size)


def test_no_text_is_refused_in_a_sentence():
    with pytest.raises(DataError, match="no tokenizer"):
        train_model(iter([]), vocab_size=512)


def foreign(folder, **options):
    """A model as sentencepiece trains it by itself."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(stdlib_texts(10)[0].split("\n")),
        model_writer=model,
        vocab_size=600,
        hard_vocab_limit=False,
        minloglevel=2,
        **{"byte_fallback": True, **options},
    )
    (folder / "foreign.model").write_bytes(model.getvalue())
    return folder / "foreign.model"


def test_a_foreign_tokenizer_is_used_as_it_is_and_says_that_it_changes_texts(tmp_path):
    path = foreign(tmp_path)
    tokenizer, text = open_tokenizer(path), "a  b\nc"
    assert not tokenizer.keeps_text
    assert tokenizer.encode(text) == sentencepiece.SentencePieceProcessor(model_file=str(path)).encode(text)
    assert tokenizer.decode(tokenizer.encode(text)) == "a b c"


def test_a_tokenizer_without_an_end_is_refused(tmp_path):
    with pytest.raises(DataError, match="has no end-of-text token"):
        open_tokenizer(foreign(tmp_path, eos_id=-1))


def test_a_missing_or_broken_model_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"cannot be read.*train_tokenizer\.py"):
        open_tokenizer(tmp_path / "none.model")
    (tmp_path / "broken.model").write_bytes(b"no model")
    with pytest.raises(DataError, match="not a sentencepiece model"):
        open_tokenizer(tmp_path / "broken.model")


def test_a_foreign_tokenizer_with_a_piece_for_a_newline_may_rewrite_characters(tmp_path):
    spaces = {"add_dummy_prefix": False, "remove_extra_whitespaces": False}
    tokenizer = open_tokenizer(foreign(tmp_path, user_defined_symbols=["\n"], normalization_rule_name="nfkc", **spaces))
    assert tokenizer.decode(tokenizer.encode("a  b\n\ufb01")) == "a  b\nfi"
    assert not tokenizer.keeps_text


@pytest.mark.parametrize(
    "options",
    [
        {"normalization_rule_name": "nmt_nfkc", "add_dummy_prefix": False, "remove_extra_whitespaces": False},
        {"normalization_rule_name": "identity", "add_dummy_prefix": False},
        {"normalization_rule_name": "identity", "remove_extra_whitespaces": False},
        {},
    ],
    ids=["rule", "spaces", "prefix", "all"],
)
def test_a_foreign_tokenizer_with_a_piece_for_a_newline_may_normalize(tmp_path, options):
    path, text = foreign(tmp_path, user_defined_symbols=["\n"], **options), " a  b\n  c\r\n"
    tokenizer = open_tokenizer(path)
    assert (tokenizer.keeps_text, tokenizer.splits_at_lines) == (False, False)
    assert tokenizer.encode(text) == sentencepiece.SentencePieceProcessor(model_file=str(path)).encode(text)


def test_a_tokenizer_with_a_piece_for_a_newline_that_loses_characters_is_refused(tmp_path):
    spaces = {"add_dummy_prefix": False, "remove_extra_whitespaces": False}
    options = {"byte_fallback": False, "normalization_rule_name": "identity", **spaces}
    with pytest.raises(DataError, match="has no fallback to bytes, or is damaged"):
        open_tokenizer(foreign(tmp_path, user_defined_symbols=["\n"], **options))
