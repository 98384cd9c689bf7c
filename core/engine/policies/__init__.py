"""Steps that are bad: looked at, left out, taken back."""
