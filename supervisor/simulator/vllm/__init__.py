"""A fake vLLM server, after runs of 0.32.0: its log, processes, port and signals, without a GPU."""
