"""Forecast the time and the cost of a stage from measured steps, and score stored forecasts against what happened."""
