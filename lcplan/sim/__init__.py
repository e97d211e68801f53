"""The simulated engine: a real HTTP server with a vLLM or SGLang face, whose time is virtual."""
