"""Documents of text: sources, split, tokenizer training, token shards."""
