"""Arithmetic as PTX defines it, on numpy vectors: rounding, narrow formats, integers."""
