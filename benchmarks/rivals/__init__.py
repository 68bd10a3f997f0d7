"""Published layers of other authors, for timings side by side: re-implemented, or wrapped if a package exists."""
