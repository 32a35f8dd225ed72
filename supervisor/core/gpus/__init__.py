"""The book of this machine's GPUs: leases, accounts, quarantine, and whether a server may start on them."""
