"""The demo: a small world of drawn shapes, a real model of it, and the journey from pairs to a trained adapter."""
