"""Forecasts of how long a stage takes."""
