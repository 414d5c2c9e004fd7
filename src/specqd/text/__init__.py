"""Text to tokens and back: tokenizers, streams of text, chat templates."""
