"""Checkpoints and artifacts in S3, and archives that move a root folder to another machine."""
