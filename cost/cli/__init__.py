"""The commands of `python -m cost`."""
