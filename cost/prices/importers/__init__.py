"""Readers of other people's price lists. Each turns a source into a `Snapshot` of price rows; none of them guesses."""
