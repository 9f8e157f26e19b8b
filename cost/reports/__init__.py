"""Cost reports: by trial, grouped, as CSV, JSON, FOCUS or a table in the terminal."""
