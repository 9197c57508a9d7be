"""Rewards: numbers for generated images, from cheap statistics to preference models and remote servers."""
