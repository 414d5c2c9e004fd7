"""OpenAI's protocol as data: requests in, answers out, tools and schemas."""
