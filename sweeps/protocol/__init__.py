"""Between the stages: gates, promotion, and the learning-rate rule."""
