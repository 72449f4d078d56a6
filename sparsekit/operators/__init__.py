"""Operators as callables: arguments checked, a kernel chosen with reasons, built, loaded, launched."""
