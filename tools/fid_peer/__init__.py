"""Compares measures of image quality with those of `pytorch-fid`, `torch-fidelity` and `lpips`, on random weights."""
