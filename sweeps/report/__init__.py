"""What people see of a sweep: tables in the terminal, live and at the end."""
