"""One question of the story each; a section that has nothing to tell is None, and is left out."""
