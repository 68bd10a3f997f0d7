"""Prompts and their answers: from files of pairs or chats to columns of tokens."""
