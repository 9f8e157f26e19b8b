"""Many runs, in stages: the only package that knows both `rl` and `cost`."""
