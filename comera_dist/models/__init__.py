"""Models whose layers are dense or tensorized by plan."""
