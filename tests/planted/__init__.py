"""Steps as users write them: correct ones, and ones with a mistake that the assertions of `core.testing` must name."""
