"""How much memory a trial needs on one card, computed from the model's configuration before any weights are loaded.

`architecture` reads the shape of a model, `usage` predicts the peak of a trial, and `verdict` compares the peak with
the memory of a card and finds settings that fit. Nothing here allocates the memory that it computes.

Tested in tests/rl/memory/.
"""
