"""What all else uses: sizes, whether oomph is installed, the log."""
