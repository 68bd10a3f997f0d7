"""What others do for smaller linear layers and embeddings, for timings side by side.

Written anew from published descriptions, or wrapped where a package exists.
"""
