"""The line that keeps something: followed as it runs, or supposed from the source."""
