"""Targets that are no classes."""

IGNORED_TARGET = -100  # counts nothing in any loss or figure; the default `ignore_index` of torch's cross-entropy
