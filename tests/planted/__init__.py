"""Steps as people write them: right ones, and ones with a mistake that the assertions of `core.testing` must name."""
