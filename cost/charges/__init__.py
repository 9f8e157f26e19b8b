"""What a lease costs, and how its charge is split over the attempts that used it."""
