"""Small tokenizers like those of published models."""

import json

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

LINES = [f"for item_{i} in range({i}): total += item_{i} * {i * i}  # é \U0001f600 adding" for i in range(200)]


def byte_level() -> Tokenizer:
    """As GPT-2's and LLaMA 3's."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(LINES, trainer)
    return made


def metaspace() -> Tokenizer:
    """As LLaMA 2's: a space before the text is added, and bytes stand for rare characters."""
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    made = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    made.pre_tokenizer = pre_tokenizers.Split("\u2581", "merged_with_next")
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=["<unk>", "<s>", "</s>", *bytes_], limit_alphabet=60, show_progress=False
    )
    made.train_from_iterator(LINES, trainer)
    whole = json.loads(made.to_str())
    for token in whole["added_tokens"]:
        token["special"] = token["content"] not in bytes_
    whole["added_tokens"] = [token for token in whole["added_tokens"] if token["special"]]
    made = Tokenizer.from_str(json.dumps(whole))
    parts = (decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0))
    made.decoder = decoders.Sequence(list(parts))
    return made


def word_piece() -> Tokenizer:
    """As BERT's: case and spaces are lost."""
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer, made.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=120, special_tokens=special, show_progress=False)
    made.train_from_iterator(LINES, trainer)
    return made


KINDS = {"byte level": byte_level, "metaspace": metaspace, "word piece": word_piece}
