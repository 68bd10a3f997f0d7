"""The target that marks a place without a target."""

IGNORED_TARGET = -100  # adds nothing to a loss or figure; the default `ignore_index` of torch's cross-entropy
