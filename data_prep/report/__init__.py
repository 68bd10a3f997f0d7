"""A page about prepared data: what a split holds, measured on a sample that is spread evenly over it."""
