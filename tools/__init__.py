"""What developers of headcount run on its source."""
