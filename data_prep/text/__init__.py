"""Documents of text: sources, tokenizer training, token shards."""
