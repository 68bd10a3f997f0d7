"""A sentencepiece model as a tokenizer of the library `tokenizers`, which gives the same ids and the same text.

sentencepiece merges the two neighbouring pieces whose union has the best score. `tokenizers` merges the pair that comes
first in a list, so the list has every way to make a piece of two others, in the order of the pieces' scores.
"""

from pathlib import Path
from typing import Any

from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken, decoders, models
from tokenizers import Tokenizer as FastTokenizer

from comera_dist.data.tokenizer import SPACE_MARK
from comera_dist.errors import DataError

ModelProto = sentencepiece_model_pb2.ModelProto  # type: ignore[attr-defined]  # it is made at import


def fast_tokenizer(path: Path, specials: tuple[str, ...] = ()) -> FastTokenizer:
    """The tokenizer of a sentencepiece model; ids of the special tokens `specials` come before those of its pieces.

    Text that looks like a special token is text, as for our own tokenizer. DataError for a model that is not byte-pair
    encoding with byte fallback, or that changes characters.
    """
    proto = _read(path)
    # Pieces hold true spaces here: a literal SPACE_MARK is then a rare character, which becomes bytes as ours does.
    kind = ModelProto.SentencePiece
    pieces = [(piece.piece.replace(SPACE_MARK, " "), piece.score, piece.type) for piece in proto.pieces]
    ids = {name: index for index, name in enumerate((*specials, *(name for name, _, _ in pieces)))}
    if len(ids) < len(specials) + len(pieces):
        raise DataError(
            f"tokenizer {path} has a piece that looks like one of {', '.join(specials)}, and a fast tokenizer would "
            f"take one for the other; export with --to tensors, or train on another tokenizer"
        )
    scores = {name: score for name, score, type_ in pieces if type_ == kind.NORMAL}
    fast = FastTokenizer(models.BPE(ids, _merges(scores), byte_fallback=True))
    fast.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    fast.add_tokens([_added(name) for name, _, type_ in pieces if type_ == kind.USER_DEFINED])
    control = [name for name, _, type_ in pieces if type_ in (kind.CONTROL, kind.UNKNOWN)]
    fast.add_special_tokens([_added(name, special=True) for name in (*specials, *control)])
    fast.encode_special_tokens = True
    return fast


def _merges(scores: dict[str, float]) -> list[tuple[str, str]]:
    """All ways to make a piece of two others, best pieces first."""
    best_first = sorted(scores, key=lambda name: -scores[name])
    halves = ((name[:place], name[place:]) for name in best_first for place in range(1, len(name)))
    return [pair for pair in halves if scores.keys() >= set(pair)]


def _added(name: str, special: bool = False) -> AddedToken:
    """A token that is found before any merge, the longest one first, as sentencepiece does with its own symbols."""
    return AddedToken(name, normalized=False, special=special)


def _read(path: Path) -> Any:
    """The model as a protocol buffer."""
    proto = ModelProto.FromString(path.read_bytes())
    trainer = proto.trainer_spec
    if trainer.model_type != trainer.BPE or not trainer.byte_fallback or proto.normalizer_spec.precompiled_charsmap:
        raise DataError(
            f"tokenizer {path} is not byte-pair encoding with byte fallback that keeps every character, as a fast "
            "tokenizer needs; export with --to tensors, or train on a tokenizer of data_prep/train_tokenizer.py"
        )
    return proto
