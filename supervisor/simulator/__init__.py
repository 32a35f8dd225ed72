"""A fake SGLang server: log bytes, process tree, port and signals of the real one, without a GPU."""
