"""From a search space to the list of trials that a sweep runs."""
