"""From Hydra's composed configuration to typed, validated dataclasses."""
