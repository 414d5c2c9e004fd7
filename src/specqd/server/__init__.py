"""An OpenAI-compatible server: HTTP requests to one engine, answers whole or as streams.

Needs the extra `specqd[serve]`. Knows transport; knows nothing of drafts or weights.
"""
