"""Ways to make rollouts (and the training forward) cheaper, and the rules that keep them honest."""
