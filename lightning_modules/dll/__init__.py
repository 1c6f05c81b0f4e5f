"""Dendritic localized learning."""
