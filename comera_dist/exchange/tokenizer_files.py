"""The tokenizer of a trained model as files that transformers reads.

Text that looks like a special token is text (`split_special_tokens`), as in our data.
"""

import shutil
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as FastTokenizer
from tokenizers.processors import TemplateProcessing

from comera_dist.data.answers import AnswerCorpus
from comera_dist.data.fast_tokenizer import FastTokenizer as OwnFastTokenizer
from comera_dist.data.fast_tokenizer import read_whole
from comera_dist.data.pairs import PairCorpus
from comera_dist.data.sentencepiece_tokenizer import SentencepieceTokenizer
from comera_dist.data.shards import Corpus
from comera_dist.data.special_tokens import CLS, NAMES, PADDING, SEP
from comera_dist.data.tokenizer import Tokenizer
from comera_dist.exchange.fast_tokenizer import fast_tokenizer
from comera_dist.storage.files import finite_json

COMMON = {
    # The name that every release of transformers knows for a tokenizer.json without code of its own.
    "tokenizer_class": "PreTrainedTokenizerFast",
    "split_special_tokens": True,
    "clean_up_tokenization_spaces": False,
    "add_prefix_space": False,  # llama.cpp reads it
}


def write_tokenizer(
    tokenizer: Tokenizer,
    data: Corpus | PairCorpus | AnswerCorpus,
    length: int,
    folder: Path,
    chat_template: str | None = None,
) -> None:
    """Writes the files, for texts of at most `length` tokens. DataError for a tokenizer that has no equal."""
    write = _write_of_pairs if isinstance(data, PairCorpus) else _write_of_text
    fast, named = write(tokenizer, folder)
    # Its own `save` has no class of error for a full disk.
    (folder / "tokenizer.json").write_text(fast.to_str(pretty=True), encoding="utf-8")
    config = {**COMMON, "model_max_length": length, **named}
    if chat_template is not None:
        config["chat_template"] = chat_template
    (folder / "tokenizer_config.json").write_text(finite_json(config, indent=2))


def special_ids(tokenizer: Tokenizer, data: Corpus | PairCorpus | AnswerCorpus) -> dict[str, int]:
    """The ids of special tokens as config.json names them."""
    if isinstance(data, PairCorpus):
        return {"pad_token_id": _ids_of_pairs(tokenizer)[PADDING]}
    return {"bos_token_id": tokenizer.eos_id, "eos_token_id": tokenizer.eos_id, "pad_token_id": _padding(tokenizer)}


def _ids_of_pairs(tokenizer: Tokenizer) -> list[int]:
    """The ids of special tokens in pairs of texts, in the exported tokenizer. DataError if it lacks one."""
    return tokenizer.ids_of(NAMES) if isinstance(tokenizer, OwnFastTokenizer) else list(range(len(NAMES)))


def _padding(tokenizer: Tokenizer) -> int:
    """An id that no text has, or else that of the end."""
    return tokenizer.eos_id if tokenizer.unk_id is None else tokenizer.unk_id


def _write_of_text(tokenizer: Tokenizer, folder: Path) -> tuple[FastTokenizer, dict[str, Any]]:
    """A document follows the end of another one, so the token of an end is also that of a beginning."""
    fast = _fast(tokenizer)
    end, padding = (fast.id_to_token(index) for index in (tokenizer.eos_id, _padding(tokenizer)))
    fast.post_processor = TemplateProcessing(f"{end} $A", f"{end} $A $B", [(end, tokenizer.eos_id)])
    named = {"bos_token": end, "eos_token": end, "pad_token": padding}
    if tokenizer.unk_id is not None:
        named["unk_token"] = padding
    if isinstance(tokenizer, SentencepieceTokenizer):
        shutil.copyfile(tokenizer.path, folder / tokenizer.file_name)  # llama.cpp reads it
    return fast, {**named, "add_bos_token": True, "model_input_names": ["input_ids", "attention_mask"]}


def _fast(tokenizer: Tokenizer, specials: tuple[str, ...] = ()) -> FastTokenizer:
    """The tokenizer; `specials` come before its own ids, unless it is a tokenizer.json, which has them.

    DataError for one that has no equal.
    """
    if not isinstance(tokenizer, OwnFastTokenizer):
        return fast_tokenizer(tokenizer.path, specials)
    fast = FastTokenizer.from_file(str(tokenizer.path))
    fast.encode_special_tokens = True
    read_whole(fast)  # as our reader of the file has it, whatever the file says
    return fast


def _write_of_pairs(tokenizer: Tokenizer, folder: Path) -> tuple[FastTokenizer, dict[str, Any]]:
    """Rows are [CLS] first [SEP] second [SEP], with token type 1 from the second text on."""
    fast, ids = _fast(tokenizer, NAMES), _ids_of_pairs(tokenizer)
    pad, cls, sep, mask = NAMES
    marks = [(cls, ids[CLS]), (sep, ids[SEP])]
    fast.post_processor = TemplateProcessing(f"{cls} $A {sep}", f"{cls} $A {sep} $B:1 {sep}:1", marks)
    named: dict[str, Any] = {"pad_token": pad, "cls_token": cls, "sep_token": sep, "mask_token": mask}
    if tokenizer.unk_id is not None:
        named["unk_token"] = fast.id_to_token(tokenizer.unk_id + len(NAMES))
    return fast, {**named, "model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}
