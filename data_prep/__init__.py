"""Commands that prepare data, and their rooms: files, then text, pairs and clicks on top of it."""
