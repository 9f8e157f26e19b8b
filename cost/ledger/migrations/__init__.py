"""The one chain of migrations of the database; run by the store at opening."""
