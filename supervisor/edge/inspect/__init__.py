"""Looks at what a start will need, in a process of its own that becomes the server's user and may hang without harm.

Nothing is imported here: the child (`__main__`) would pay for what only the daemon's side (`ask`) needs, at each start.
"""
