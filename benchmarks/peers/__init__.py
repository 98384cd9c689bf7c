"""How fast Tapeloop trains beside its peers: the same model, batches, data and optimizer, in fresh processes."""
