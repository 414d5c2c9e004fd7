"""Converts Anthropic's requests to chats, and chats' answers to Anthropic's."""
