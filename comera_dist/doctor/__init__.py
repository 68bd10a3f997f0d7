"""Checks of the machines that a run would train on."""
