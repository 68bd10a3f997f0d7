"""How a weight matrix is stored: one module or folder for each format."""
