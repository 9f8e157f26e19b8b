"""What things cost: the price book, billing rules, exchange rates, and the importers that add prices."""
