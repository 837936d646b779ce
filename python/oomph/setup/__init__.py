"""Making oomph PyTorch's allocator: when asked, by the environment, or as plain C."""
