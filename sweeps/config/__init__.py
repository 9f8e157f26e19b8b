"""From what a person types to typed, checked dataclasses: overrides, values, and the search space."""
