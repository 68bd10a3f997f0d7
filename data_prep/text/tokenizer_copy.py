"""The tokenizer beside prepared data: its entry in the manifest, and the copy of its file."""

from comera_dist.data.tokenizer import Tokenizer


def tokenizer_entry(tokenizer: Tokenizer) -> dict[str, str]:
    """The entry of a manifest: the name of the copy, and its sha256."""
    return {"file": tokenizer.file_name, "sha256": tokenizer.fingerprint}


def tokenizer_copy(tokenizer: Tokenizer) -> dict[str, bytes]:
    """The content of the copy by its name."""
    return {tokenizer.file_name: tokenizer.path.read_bytes()}
