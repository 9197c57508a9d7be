"""Ways to make rollouts (and the training forward pass) cheaper, and the rules that keep results correct."""
