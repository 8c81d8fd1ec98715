"""Rows of tables, answered on one machine or many."""
