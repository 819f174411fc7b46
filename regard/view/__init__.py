"""What a model looked at, as pictures: in the terminal, as PNG and SVG, and as the explorer, a page for browsers."""
