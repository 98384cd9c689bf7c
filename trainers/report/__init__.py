"""A report on runs in one self-contained HTML file."""
