"""vLLM: its command line and that of its router, and the flag tables of its versions."""
