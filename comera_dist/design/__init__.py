"""Proposes models for a budget, from losses that were measured."""
