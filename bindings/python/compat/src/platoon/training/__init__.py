"""Rules by which workers train together."""
