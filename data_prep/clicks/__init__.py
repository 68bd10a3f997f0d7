"""Click logs: sources, splits, columns of numbers and table rows."""
