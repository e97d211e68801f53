"""Any OpenAI-compatible server, by its command."""
