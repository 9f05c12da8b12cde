"""Models of Keras, and of any library whose models have get_weights() and set_weights()."""
