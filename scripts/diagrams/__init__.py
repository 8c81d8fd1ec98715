"""Drawing diagrams as SVG: a canvas, and the layout of a graph in floors."""
