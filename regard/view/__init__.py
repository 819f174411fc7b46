"""What a model looked at, as pictures: in the terminal, as PNG and SVG, and as one HTML file."""
