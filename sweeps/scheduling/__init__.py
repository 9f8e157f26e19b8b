"""Which trial may start now: queue, budget and retries."""
