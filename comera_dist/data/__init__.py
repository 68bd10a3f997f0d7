"""Data of a run: the tokenizer, token shards on disk and the order in which a run reads them.

Nothing is imported here, so that tokenizing a corpus does not have to load torch.
"""
