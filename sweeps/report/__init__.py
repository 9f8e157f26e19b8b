"""What a person looks at: the terminal, the timeline, MLflow."""
