"""Movable figures and panels; each carries its whole state into the page and needs no server."""
