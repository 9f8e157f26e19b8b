"""The machine of a sweep: its price, its lease, its cards, and how it is acquired and released."""
