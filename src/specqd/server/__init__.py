"""An HTTP server with OpenAI's and Anthropic's APIs for one engine. Answers can be streamed.

Needs the extra `serve`. Owns transport. Knows nothing of drafts or weights.
"""
