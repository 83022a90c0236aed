"""One way of fooling oneself, one file."""
