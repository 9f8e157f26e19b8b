"""Spending limits, and what counts against them."""
