"""Who starts and ends before whom, of the servers of one host."""
