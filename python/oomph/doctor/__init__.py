"""``oomph doctor``: explains out-of-memory errors that a log reports."""
