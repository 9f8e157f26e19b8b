"""What people look at: tables in the terminal, the timeline, MLflow."""
