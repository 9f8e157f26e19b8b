"""Copies of a ledger: snapshots in S3, restore and merge."""
