"""Reads source files and publishes prepared data of any kind."""
