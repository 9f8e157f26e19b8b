"""The machine of a sweep: its lease, cards and price, and acquiring and releasing it."""
