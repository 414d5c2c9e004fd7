"""A model: its weights, the native decoder and what runs it."""
