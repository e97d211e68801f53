"""lcplan: plan/apply for LLM serving campaigns."""

__version__ = "0.1.0"
