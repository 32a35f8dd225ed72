"""`sglctl`, the client: the standard library alone, so that a call costs little and works in a broken environment."""
