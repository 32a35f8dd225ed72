"""Measurements of the product, each beside a peer measured in the same run."""
