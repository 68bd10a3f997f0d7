"""The mathematics of tensor-train layers, without processes, DeepSpeed or configuration files."""
