"""An OpenAI-compatible server: HTTP in, requests to one engine, text out as it comes.

Needs the extra `specqd[serve]`. Knows how a request travels; knows nothing of drafts or weights.
"""
