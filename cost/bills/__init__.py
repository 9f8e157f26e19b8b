"""Providers' bills: reading, comparing with the ledger, and correcting the ledger by an invoice."""
