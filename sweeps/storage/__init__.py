"""Checkpoints and sweeps in S3 and in archives."""
