"""A tokenizer.json of Hugging Face's library gives the library's ids, and the texts that it can keep."""

import json

import pytest
from tokenizer_kinds import KINDS, LINES, byte_level
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from comera_dist.data.open_tokenizer import open_tokenizer
from comera_dist.data.tokenizer import INCOMPLETE
from comera_dist.errors import DataError
from comera_dist.generate.writer import text_pieces

AWKWARD = ["  two  spaces ", "a\n\n\tb\r\n", "\u2581 é \U0001f600\x00 \U0001f468\u200d", "</s> <|endoftext|> [SEP]", ""]


def opened(made: Tokenizer, folder):
    made.save(str(folder / "tokenizer.json"))
    return open_tokenizer(folder / "tokenizer.json")


@pytest.fixture(params=KINDS)
def made(request):
    return KINDS[request.param]()


def test_ids_are_those_of_the_library(made, tmp_path):
    tokenizer, theirs = opened(made, tmp_path), PreTrainedTokenizerFast(tokenizer_object=made)
    for text in [*LINES[:20], *AWKWARD[:3]]:
        assert tokenizer.encode(text) == theirs.encode(text, add_special_tokens=False)
    assert tokenizer.vocab_size == len(theirs)


@pytest.mark.parametrize(
    ("kind", "changed"), [("byte level", []), ("metaspace", AWKWARD[2:3]), ("word piece", AWKWARD[:4])]
)
def test_it_says_whether_it_keeps_texts(kind, changed, tmp_path):
    """Like sentencepiece, metaspace cannot tell a space from the character that stands for it."""
    tokenizer = opened(KINDS[kind](), tmp_path)
    assert [text for text in AWKWARD if tokenizer.decode(tokenizer.encode(text)) != text] == changed
    assert tokenizer.keeps_text == (not changed)


@pytest.mark.parametrize(("form", "text"), [("NFC", "e\u0301"), ("NFD", "é"), ("NFKC", "\ufb01"), ("NFKD", "\u00b2")])
def test_a_normal_form_of_unicode_changes_texts(form, text, tmp_path):
    made = byte_level()
    made.normalizer = getattr(normalizers, form)()
    tokenizer = opened(made, tmp_path)
    assert tokenizer.decode(tokenizer.encode(text)) != text
    assert not tokenizer.keeps_text


def test_a_text_cannot_write_control_tokens(made, tmp_path):
    tokenizer = opened(made, tmp_path)
    assert tokenizer.eos_id not in tokenizer.encode("</s> <|endoftext|> [SEP]")
    assert tokenizer.decode([*tokenizer.encode("item"), tokenizer.eos_id]) == "item"


def unigram() -> Tokenizer:
    """As T5's: the end token is a piece of the vocabulary."""
    made = Tokenizer(models.Unigram())
    made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    special = ["<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(
        vocab_size=120, special_tokens=special, unk_token="<unk>", initial_alphabet=list("</s>"), show_progress=False
    )
    made.train_from_iterator(LINES, trainer)
    return made


def not_special() -> Tokenizer:
    """A byte-level tokenizer whose file says that its end token is none of the special ones."""
    whole = json.loads(byte_level().to_str())
    for token in whole["added_tokens"]:
        token["special"] = False
    return Tokenizer.from_str(json.dumps(whole))


@pytest.mark.parametrize("kind", [unigram, not_special])
def test_an_end_token_that_the_library_reads_in_any_text_is_text(kind, tmp_path):
    made = kind()
    tokenizer = opened(made, tmp_path)
    name = made.id_to_token(tokenizer.eos_id)
    for text in (f"one {name} total{name}{name}", name, f"{name} total"):
        assert tokenizer.eos_id in made.encode(text, add_special_tokens=False).ids
        ids = tokenizer.encode(text)
        assert tokenizer.eos_id not in ids
        assert tokenizer.decode(ids).replace(" ", "") == text.replace(" ", "")


def test_a_file_that_cuts_and_pads_is_read_without_that(tmp_path):
    made = byte_level()
    made.enable_truncation(3)
    made.enable_padding(length=50)
    tokenizer = opened(made, tmp_path)
    assert tokenizer.decode(tokenizer.encode(LINES[0])) == LINES[0]


def test_a_file_that_was_trained_with_dropout_gives_each_text_the_same_ids(tmp_path):
    made = byte_level()
    ids = made.encode(LINES[0]).ids
    made.model.dropout = 0.9
    tokenizer = opened(made, tmp_path)
    assert [tokenizer.encode(LINES[0]) for _ in range(5)] == [ids] * 5


@pytest.mark.parametrize("named", ["item", {"content": "item", "special": True}])
def test_the_file_beside_it_names_the_end_of_a_text(named, tmp_path):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": named}))
    made = byte_level()
    made.add_special_tokens(["item"])
    assert opened(made, tmp_path).eos_id == made.token_to_id("item")


@pytest.mark.parametrize("config", ["{", "[]", "{}", '{"eos_token": null}'])
def test_otherwise_it_is_a_known_one(config, tmp_path):
    (tmp_path / "tokenizer_config.json").write_text(config)
    assert opened(byte_level(), tmp_path).eos_id == byte_level().token_to_id("<|endoftext|>")


@pytest.mark.parametrize("named", [None, "absent"])
def test_a_tokenizer_without_an_end_is_refused(named, tmp_path):
    if named:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": named}))
    made = byte_level() if named else Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    with pytest.raises(DataError, match=r"no token that is known to end a text; put a tokenizer_config\.json"):
        opened(made, tmp_path)


@pytest.mark.parametrize(
    "model",
    [
        models.WordLevel({"</s>": 0}, unk_token="[UNK]"),
        models.WordPiece({"</s>": 0}, unk_token="[UNK]"),
        models.Unigram([("</s>", 0.0), ("a", -1.0)]),
        models.BPE({"</s>": 0}, [], unk_token="[UNK]"),
    ],
)
def test_a_tokenizer_without_its_token_for_unknown_text_says_so(model, tmp_path):
    tokenizer = opened(Tokenizer(model), tmp_path)
    with pytest.raises(DataError, match=r"cannot read a text \(.*\); give it a token for unknown text"):
        tokenizer.encode("b")


@pytest.mark.parametrize("content", ["{", "{}", '{"model": 7}', '{"version": "1.0", "model": {"type": "BPE"}}'])
def test_a_broken_file_is_refused(content, tmp_path):
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(DataError, match=r"cannot be read as a tokenizer\.json"):
        open_tokenizer(tmp_path / "tokenizer.json")


def test_surfaces_are_the_texts_that_tokens_add(made, tmp_path):
    tokenizer = opened(made, tmp_path)
    surfaces = tokenizer.surfaces()
    assert len(surfaces) == tokenizer.vocab_size
    assert surfaces[tokenizer.eos_id] is None
    ids = tokenizer.encode("range and total item adding")
    said = "".join(surfaces[token] for token in ids).strip()
    assert said == "range and total item adding"
    assert all(surface != "" for surface in surfaces)


@pytest.mark.parametrize("kind", ["byte level", "metaspace"])
def test_text_comes_in_pieces_that_make_up_the_whole(kind, tmp_path):
    tokenizer = opened(KINDS[kind](), tmp_path)
    prompt, rest = "for item in", " range(3):  # \U0001f600 é\n    adding"
    ids = tokenizer.encode(prompt + rest)
    told = tokenizer.encode(prompt)
    assert ids[: len(told)] == told
    pieces = list(text_pieces(tokenizer, [*ids[len(told) :], tokenizer.eos_id], prompt))
    assert "".join(pieces) == rest
    assert not any(INCOMPLETE in piece for piece in pieces)


@pytest.mark.parametrize("kind", ["byte level", "metaspace"])
@pytest.mark.parametrize("prompt", ["a \U0001f680", "\U0001f680", "\ufffd", ""])
def test_text_after_a_character_of_several_tokens(kind, prompt, tmp_path):
    tokenizer, rest = opened(KINDS[kind](), tmp_path), "\U0001f681 \u65e5adding"
    told = tokenizer.encode(prompt)
    ids = tokenizer.encode(prompt + rest)[len(told) :]
    assert "".join(text_pieces(tokenizer, ids, prompt)) == rest
