"""A real Slurm on this machine, with a network namespace a node, to run the files of `deploy/` on."""
