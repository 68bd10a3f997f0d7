"""Measurements, each a command that prints a table. No part of the installed library."""
