"""What all other packages use: sizes, whether oomph is installed, the log."""
