"""The cost ledger: turns leases of machines and card-hours into exact costs. Imports no ray, torch, mlflow or hydra."""
