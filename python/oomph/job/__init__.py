"""What the ranks of a job have left behind, as one report: ``oomph report``."""
