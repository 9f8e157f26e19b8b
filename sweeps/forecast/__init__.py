"""How long a stage takes."""
