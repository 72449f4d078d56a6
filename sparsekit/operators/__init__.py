"""Operators as callables: arguments checked, a kernel chosen, built, loaded and launched."""
