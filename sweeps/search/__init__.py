"""Which point to try next, which trial to prune, which trial is best."""
