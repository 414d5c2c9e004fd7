"""A model: its weights, the native decoder, its KV cache, scores."""
