"""Models of Lasagne."""
