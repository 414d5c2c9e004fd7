"""OpenAI's protocol as data: requests, answers, tools, schemas and batch files."""
