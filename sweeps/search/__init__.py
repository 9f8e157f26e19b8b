"""Proposals, pruning and the best point of a search."""
