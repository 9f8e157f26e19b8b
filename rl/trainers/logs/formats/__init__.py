"""One reader per format. Each takes a `Document` and returns what it finds as `Parsed`, or None."""
