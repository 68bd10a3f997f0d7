"""The mathematics of tensor-train layers. Knows no process, no DeepSpeed and no configuration file."""
