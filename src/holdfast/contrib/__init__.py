"""Holdfast beside other libraries. Each module needs the one that it is named after, and is imported by you alone."""
