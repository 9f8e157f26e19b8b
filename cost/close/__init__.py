"""Consistency checks, and closing a month."""
