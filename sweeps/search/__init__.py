"""Which points of the search space become trials: the space, points drawn at random, and those Optuna proposes."""
