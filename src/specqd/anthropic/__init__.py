"""Anthropic's requests and answers, converted to and from chats."""
