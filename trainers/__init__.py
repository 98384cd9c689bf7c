"""From a gin file to a trained model: the step, the loop around it, and the command line."""
