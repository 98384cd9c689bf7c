"""Verifies on the machine at hand what was tested on others: its kernels, its devices together, its resumes."""
