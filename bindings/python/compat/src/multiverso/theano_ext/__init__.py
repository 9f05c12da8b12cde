"""Models that train beside each other: each worker adds what it has changed, and takes over what all have changed."""
