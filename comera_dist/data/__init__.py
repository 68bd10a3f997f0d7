"""Data of a run: prepared data on disk, the tokenizer, and the order in which a run reads rows.

Nothing is imported here, so that tokenizing a corpus does not load torch.
"""
