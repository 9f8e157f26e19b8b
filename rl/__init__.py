"""One run: everything that trains a model with GRPO. Knows nothing of hydra, mlflow, money or sweeps."""
