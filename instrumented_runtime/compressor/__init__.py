"""Compressors of the key-value cache, on side streams beside the attention they serve."""
