"""Trains EAGLE-3 heads: texts, features and a loop. Only `head` and `loop` import torch."""
