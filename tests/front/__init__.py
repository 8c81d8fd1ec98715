"""Recordings of all that a user of the front half can see: texts, errors, replies, saved conversations.

Each module records one kind of it through the public surface alone: command lines, ``import tinychat``, configuration
files and session files. So the recordings can be made before and after any change of what lies behind that surface.
"""
