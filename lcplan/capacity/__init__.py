"""KV arithmetic: a pool predicted before launch and read after it, and how many sequences of a length fit."""
