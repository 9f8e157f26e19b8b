"""Money: card-hours into an exact bill. Knows nothing of ray, torch, mlflow or hydra."""
