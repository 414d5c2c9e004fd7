"""Converts text to tokens and back: tokenizers, streamed text, chat templates."""
