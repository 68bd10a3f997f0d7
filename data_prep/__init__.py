"""Commands that prepare data. `files` serves all of them; `text`, `pairs` and `clicks` are built on it."""
