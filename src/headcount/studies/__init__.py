"""Studies: train and measure many runs from one file, each in its own process, and summarise their results."""
