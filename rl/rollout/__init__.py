"""Engines that sample completions behind one interface. Light to import: each engine is loaded where it is chosen."""
