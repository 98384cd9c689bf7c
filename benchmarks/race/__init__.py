"""A race of update rules to the loss of AdamW."""
