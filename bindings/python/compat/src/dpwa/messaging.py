"""dpwa's messages (type, lengths, pickled state) are refused by name: Tutti's own protocol carries the models."""
raise ImportError("dpwa.messaging is not provided: nodes talk Tutti's protocol, without pickle, and not with nodes of "
                  "the original dpwa. Use DpwaConnection.update_send and update_wait")
