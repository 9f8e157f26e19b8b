"""The journal: the events of a sweep, and the state that their replay gives."""
