"""Migrations of the ledger's database, run when a ledger is opened.

Tested in tests/cost/ledger/test_migrations.py.
"""
