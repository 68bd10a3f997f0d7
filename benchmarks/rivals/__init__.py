"""What others do for smaller linear layers, embeddings and optimizer states, for timings side by side.

Written anew from published descriptions, or wrapped where a package exists.
"""
