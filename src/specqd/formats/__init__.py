"""Reads weight files and their number formats: bytes in, NumPy arrays out."""
