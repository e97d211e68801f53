"""SGLang: its command line, and the flag tables of its versions."""
