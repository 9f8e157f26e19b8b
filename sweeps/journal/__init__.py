"""The journal: a sweep's events, and the state that follows from replaying them."""
