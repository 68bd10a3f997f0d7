"""Parameter groups and optimizers. Each optimizer is one file, which says which tensors it keeps."""
