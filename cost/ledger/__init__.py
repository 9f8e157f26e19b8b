"""The ledger: leases, usages, reservations and the journal's events, in SQLite or PostgreSQL. Knows no price."""
