"""Checks of a trial: its inputs before a machine is acquired, and its model before the first step."""
