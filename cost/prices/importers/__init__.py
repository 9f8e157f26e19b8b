"""Importers of published price lists. Each reads a source into a `Snapshot` of price rows, without unknown prices."""
