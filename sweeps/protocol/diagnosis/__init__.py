"""Reads a GRPO run: named findings with evidence, cause and remedy. Start with `diagnose.diagnose`."""
